"""Folders of images: classes, or splits that contain classes."""

import os

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


def test_files_that_are_not_read_are_reported(tmp_path, caplog):
    tree(tmp_path, "cat/1.png", "dog/1.png", "stray.png")
    (tmp_path / "cat" / "2.heic").write_bytes(b"")
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"")
    assert len(read_folders(tmp_path).labels) == 2
    assert caplog.messages == [
        f"{tmp_path}: 1 image(s) in no class folder are ignored",
        f"{tmp_path}: files that are not images of a supported format are ignored (1 .heic)",
    ]


@pytest.fixture
def outside(tmp_path):
    """A folder beside the root, with an image that must not be read."""
    tree(tmp_path / "outside", "secret.png", "cat/1.png")
    return tmp_path / "outside"


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("cat/2.png", "secret.png"),  # an image
        ("dog", "cat"),  # a class
        ("cat/more", "cat"),  # a folder of a class
    ],
)
@pytest.mark.parametrize("is_relative", [False, True])
def test_links_out_of_the_folder_are_refused_naming_them(tmp_path, outside, link, target, is_relative):
    root = tree(tmp_path / "root", "cat/1.png")
    goal = outside / target
    (root / link).symlink_to(os.path.relpath(goal, (root / link).parent) if is_relative else goal)
    for use in (read_folders, find_splits, lambda source: read_any(source, "test")):
        if use is find_splits and link == "cat/2.png":  # it opens no image
            continue
        with pytest.raises(DataError, match=f"{link}: is a link to {goal}, outside {root}; such links are"):
            use(root)


def test_links_inside_the_folder_are_followed(tmp_path, caplog):
    root = tree(tmp_path / "root", "pool/1.png", "train/cat/1.png")
    (root / "train" / "cat" / "2.png").symlink_to("../../pool/1.png")  # out of the split, but inside the source
    (root / "train" / "dog").symlink_to(root / "pool")
    found = read_any(root, "train")
    assert found.labels.tolist() == [0, 0, 1]
    (tmp_path / "link").symlink_to(root)  # the source itself may be a link
    assert read_any(tmp_path / "link", "train").labels.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match=r"dog: is a link to .*/pool, outside .*/train"):
        read_folders(root / "train")
    caplog.clear()
    (root / "train" / "cat" / "more").symlink_to(root / "pool")
    assert read_any(root, "train").labels.tolist() == [0, 0, 1]
    assert any("1 link(s) to folders are not followed, the first one: " in message for message in caplog.messages)


@pytest.mark.parametrize("name", ["data_batch_1", "train-images-idx3-ubyte", "train_32x32.mat"])
def test_links_in_folders_of_public_formats_must_stay_inside(tmp_path, name):
    root, secret = tmp_path / "root", tmp_path / "secret"
    root.mkdir()
    secret.write_text("secret")
    (root / name).symlink_to(secret)
    (root / "train-labels-idx1-ubyte").write_bytes(b"")
    with pytest.raises(DataError, match=f"{name}: is a link to {secret}, outside {root}"):
        read_any(root, "train")
