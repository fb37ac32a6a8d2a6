"""Folders of images: classes, or splits that contain classes."""

import pytest
from PIL import Image

from moon.data import DataError, find_splits, read_any, read_folders


def tree(root, *paths):
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(root / path)
    return root


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (["train", "test"], {"train": "train", "test": "test"}),
        (["Train", "VALID", "Testing"], {"train": "Train", "val": "VALID", "test": "Testing"}),
        (["training", "validation"], {"train": "training", "val": "validation"}),
        (["val"], {"val": "val"}),
    ],
)
def test_splits_are_recognised_by_name(tmp_path, names, splits):
    tree(tmp_path, *(f"{name}/cat/1.png" for name in names))
    found = find_splits(tmp_path)
    assert found.splits == {split: tmp_path / name for split, name in splits.items()}
    assert found.ignored == []


def test_other_folders_beside_splits_are_reported(tmp_path, caplog):
    tree(tmp_path, "train/cat/1.png", "test/cat/1.png", "extra/cat/1.png")
    (tmp_path / "notes").mkdir()  # without images
    assert find_splits(tmp_path).ignored == ["extra"]
    assert read_any(tmp_path, "test").classes == ("cat",)
    assert caplog.messages == [f"{tmp_path}: contains the splits train, test; ignored: extra"]


def test_a_class_may_be_called_train(tmp_path):
    tree(tmp_path, "bus/1.png", "car/1.png", "train/1.png")
    assert find_splits(tmp_path).splits == {}
    assert read_any(tmp_path, "test").classes == ("bus", "car", "train")
    tree(tmp_path / "train", "bus/1.png", "train/1.png")  # inside a split as well
    assert read_folders(tmp_path / "train").classes == ("bus", "train")


@pytest.mark.parametrize(
    "paths", [["train/1.png"], ["train/1.png", "test/1.png"], ["train/1.png", "test/1.png", "a/1.png"]]
)
def test_splits_that_contain_images_but_no_classes_are_rejected(tmp_path, paths):
    tree(tmp_path, *paths)
    for use in (find_splits, read_folders, lambda source: read_any(source, "train")):
        with pytest.raises(DataError, match=r"contains images but no class folders; expected t\w+/<class>/<image>$"):
            use(tmp_path)


def test_another_split_can_be_read_alone(tmp_path):
    tree(tmp_path, "train/cat/1.png", "train/dog/1.png", "test/1.png")
    with pytest.raises(
        DataError, match=r"test: contains images but no class folders.*, or import one of the other splits"
    ):
        find_splits(tmp_path)
    assert read_any(tmp_path, "train").classes == ("cat", "dog")
    with pytest.raises(DataError, match="contains the splits train, not 'val'"):
        read_any(tmp_path, "val")


def test_the_same_split_twice_is_rejected(tmp_path):
    with pytest.raises(DataError, match="val and validation are the same split; remove one"):
        find_splits(tree(tmp_path, "val/cat/1.png", "validation/cat/1.png"))


def test_a_folder_of_splits_is_not_read_as_classes(tmp_path):
    tree(tmp_path, "train/cat/1.png", "test/cat/1.png")
    with pytest.raises(DataError, match=r"contains the splits train, test, not classes; read one of them \(.*/train\)"):
        read_folders(tmp_path)


def test_splits_below_a_folder_are_not_merged(tmp_path):
    with pytest.raises(DataError, match=r"a/data: contains the splits test and train; expected .*; import .*a/data$"):
        read_folders(tree(tmp_path / "a", "data/train/cat/1.png", "data/test/cat/1.png"))
    with pytest.raises(
        DataError, match=r"b/cat: contains the splits test and train; expected b/<split>/<class>/<image>$"
    ):
        read_folders(tree(tmp_path / "b", "cat/train/1.png", "cat/test/1.png", "dog/train/1.png"))


def test_files_that_are_not_read_are_reported(tmp_path, caplog):
    tree(tmp_path, "cat/1.png", "dog/1.png", "stray.png")
    (tmp_path / "cat" / "2.heic").write_bytes(b"")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"")
    assert len(read_folders(tmp_path).labels) == 2
    assert caplog.messages == [
        f"{tmp_path}: 1 image(s) in no class folder are ignored",
        f"{tmp_path}: files that are not images of a supported format are ignored (1 .heic)",
    ]
