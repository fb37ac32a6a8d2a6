import numpy as np
import pytest
from PIL import Image

from moon.data import DataSet, hold_out, import_set, load
from moon.data.groups import group_images, split_off_groups


def dataset(groups, labels=None):
    """Images whose only pixel is their number."""
    images = np.arange(len(groups), dtype=np.uint8)[:, None, None, None]
    return DataSet(images, np.zeros(len(groups), np.int64) if labels is None else np.array(labels), (), groups)


def numbers(part):
    return part.images.ravel().tolist()


@pytest.mark.parametrize(
    ("groups", "labels", "fraction", "held"),
    [
        ("aabbccddee", None, 0.2, [0, 1]),
        ("aabbccddee", None, 0.3, [0, 1, 2, 3]),  # three images lie between one group and two
        ("edcba", None, 0.2, [4]),  # in the order of the names
        ("aaaaaabbcc", None, 0.2, [6, 7]),  # the first group is too large
        ("aaaabbb", None, 0.1, [4, 5, 6]),  # none is small enough
        ("aaaa", None, 0.5, []),  # nothing would be left
        ("aabbaabb", [0, 0, 0, 0, 1, 1, 1, 1], 0.5, [0, 1, 4, 5]),  # a group of two classes
        ("aabbabcc", [0, 0, 0, 0, 1, 1, 1, 1], 0.5, [0, 1, 4, 6, 7]),  # b would leave nothing of the first class
    ],
)
def test_groups_are_not_divided(groups, labels, fraction, held):
    groups = np.array([*groups])
    part, rest = split_off_groups(dataset(groups, labels), groups, fraction)
    assert not {*part.files} & {*rest.files}
    assert sorted(numbers(part) + numbers(rest)) == [*range(len(groups))]
    assert numbers(part) == held


def test_the_group_is_what_a_pattern_matches_or_a_table_says(tmp_path):
    images = dataset(np.array(["train/cat/rex_1.jpg", "train/cat/tom_1.jpg", "train/dog/rex_2.jpg"]))
    assert group_images(images, ".*_", "x").tolist() == ["train/cat/rex_", "train/cat/tom_", "train/dog/rex_"]
    assert group_images(images, r"([^/]+)_\d", "x").tolist() == ["rex", "tom", "rex"]
    table = tmp_path / "groups.csv"
    table.write_text("\ufeffsize,group,file\n1,a,rex_1.jpg\n2,b,cat/tom_1.jpg\n3,a,train/dog/rex_2.jpg\n")
    assert group_images(images, str(table), "x").tolist() == ["a", "b", "a"]
    for text, what in (
        ("file,group\nrex_1.jpg,a\n", "names no group for 2 of 3 images, such as train/cat/tom_1.jpg"),
        ("file,object\nrex_1.jpg,a\n", "has no column 'group'"),
        ("file,group\nrex_1.jpg,a\nrex_1.jpg,b\n", "rex_1.jpg is in two groups, a and b"),
    ):
        table.write_text(text)
        with pytest.raises(ValueError, match=what):
            group_images(images, str(table), "x")
    with pytest.raises(ValueError, match="is not a regular expression"):
        group_images(images, "(", "x")


def test_images_of_one_object_are_held_out_together(tmp_path, caplog):
    for i in range(40):  # ten objects of each of two classes
        path = tmp_path / "photos" / f"class{i % 2}" / f"object{i // 4}_{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32), (i, 0, 0)).save(path)
    import_set(tmp_path, tmp_path / "photos", "pets", "train")
    with caplog.at_level("INFO", "moon"):
        splits = hold_out(tmp_path, "pets", "held", 0.2, val_share=0.1, groups=".*_")
    assert [len(saved.dataset.labels) for saved in splits] == [28, 8, 4]
    assert "pets/train: groups of images: 14 in train, 4 in test, 2 in val" in caplog.text
    objects = [{file.partition("_")[0] for file in load(tmp_path, "held", saved.path.stem).files} for saved in splits]
    assert sum(map(len, objects)) == len(set.union(*objects)) == 20
    assert not any(saved.is_new for saved in hold_out(tmp_path, "pets", "held", 0.2, val_share=0.1, groups=".*_"))
    splits = hold_out(tmp_path, "pets", "more", 0.2, groups=".*_")  # validation images have groups of their own
    assert [len(saved.dataset.labels) for saved in splits] == [24, 8, 8]
    with pytest.raises(ValueError, match="too few groups of images to hold some out"):
        hold_out(tmp_path, "pets", "one", groups="class")


def test_sets_imported_before_names_were_kept_get_them(tmp_path):
    for name in ("a_1", "a_2", "b_1", "c_1"):
        (tmp_path / "photos" / "cat").mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "photos" / "cat" / f"{name}.png")
    saved = import_set(tmp_path, tmp_path / "photos", "pets", "train")
    np.savez(saved.path, images=saved.dataset.images, labels=saved.dataset.labels, classes=["cat"])
    with pytest.raises(ValueError, match="does not say which file each image is from; import the images again"):
        hold_out(tmp_path, "pets", "held", groups=".*_")
    assert import_set(tmp_path, tmp_path / "photos", "pets", "train").is_new
    assert not import_set(tmp_path, tmp_path / "photos", "pets", "train").is_new
    assert [len(saved.dataset.labels) for saved in hold_out(tmp_path, "pets", "held", groups=".*_")] == [2, 1, 1]
