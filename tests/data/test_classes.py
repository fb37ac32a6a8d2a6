"""One numbering of classes for all splits of a set, by name."""

import logging
import sys

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, DataSet, find_benchmark, import_set, import_splits, known_splits, load, save

COLOURS = {"cat": (250, 0, 0), "dog": (0, 250, 0), "rabbit": (0, 0, 250), "hamster": (250, 250, 0)}


@pytest.fixture(autouse=True)
def images_are_alike(monkeypatch):
    """The images of a class are the same in all splits here, which is not what is tested."""
    monkeypatch.setattr("moon.data.sets.warn_of_overlap", lambda *_: None)


def write_folders(folder, classes, count=10):
    """Class folders of images in the colour of their class."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            colour = tuple(max(0, value - index) for value in COLOURS[name])
            Image.new("RGB", (32, 32), colour).save(folder / name / f"{index}.png")
    return folder


def coloured(names, classes):
    """A data set in memory with one image per name, in its colour."""
    images = np.array([np.full((8, 8, 3), COLOURS[name], np.uint8) for name in names])
    return DataSet(images, np.array([classes.index(name) for name in names]), tuple(classes))


def nearest_colour(train, images):
    """Labels by the nearest mean colour of the training classes."""
    means = np.array([train.images[train.labels == label].mean((0, 1, 2)) for label in np.unique(train.labels)])
    return np.argmin(((images.mean((1, 2))[:, None] - means) ** 2).sum(2), 1)


def test_a_test_split_that_lacks_a_class_keeps_the_labels_of_the_training_split(tmp_path, caplog):
    caplog.set_level(logging.INFO, "moon")
    root = tmp_path / "data"
    import_set(root, write_folders(tmp_path / "train", ["cat", "dog", "rabbit"]), "pets", "train")
    import_set(root, write_folders(tmp_path / "test", ["cat", "rabbit"]), "pets", "test")
    assert "pets/test: labels renumbered like those of pets/train, by class name: rabbit 1 -> 2" in caplog.messages
    assert load(root, "pets", "test").classes == ("cat", "dog", "rabbit")
    caplog.clear()
    splits = known_splits(root, find_benchmark(root, "pets"))
    assert caplog.messages == ["pets/test: no image of class dog; accuracy is over the other 2 classes"]
    assert caplog.records[0].levelno == logging.WARNING
    for split in ("val", "test"):
        assert set(splits[split].labels) == {0, 2}
        assert (nearest_colour(splits["train"], splits[split].images) == splits[split].labels).all()


def test_splits_that_were_numbered_apart_are_aligned_when_they_are_used(tmp_path, caplog):
    caplog.set_level(logging.INFO, "moon")
    save(coloured(["cat", "dog", "rabbit"] * 4, ["cat", "dog", "rabbit"]), tmp_path, "pets", "train")
    save(coloured(["dog", "rabbit"] * 4, ["dog", "rabbit"]), tmp_path, "pets", "test")
    save(coloured(["rabbit", "dog", "cat"], ["rabbit", "dog", "cat"]), tmp_path, "pets", "val")
    splits = known_splits(tmp_path, find_benchmark(tmp_path, "pets"))
    assert splits["test"].labels.tolist() == [1, 2] * 4
    assert splits["val"].labels.tolist() == [2, 1, 0]
    assert {split: data.classes for split, data in splits.items()} == dict.fromkeys(splits, ("cat", "dog", "rabbit"))
    assert caplog.messages == [
        "pets/test: labels renumbered like those of pets/train, by class name: dog 0 -> 1 and rabbit 1 -> 2",
        "pets/val: labels renumbered like those of pets/train, by class name: rabbit 0 -> 2 and cat 2 -> 0",
        "pets/test: no image of class cat; accuracy is over the other 2 classes",
    ]


def test_a_class_that_the_training_split_lacks_is_rejected(tmp_path):
    root = tmp_path / "data"
    what = (
        r"pets/test: has images of class hamster, which pets/train does not have \(its classes are cat and dog\); add"
    )
    import_set(root, write_folders(tmp_path / "train", ["cat", "dog"]), "pets", "train")
    with pytest.raises(DataError, match=what):
        import_set(root, write_folders(tmp_path / "test", ["cat", "hamster"]), "pets", "test")
    assert not (root / "pets" / "test.npz").exists()
    save(coloured(["cat", "hamster"], ["cat", "hamster"]), root, "pets", "test")
    with pytest.raises(DataError, match=what):
        known_splits(root, find_benchmark(root, "pets"))


def test_a_new_training_split_may_come_after_the_test_split(tmp_path, caplog):
    root = tmp_path / "data"
    import_set(root, write_folders(tmp_path / "test", ["dog", "rabbit"]), "pets", "test")
    import_set(root, write_folders(tmp_path / "train", ["cat", "dog", "rabbit"]), "pets", "train")
    assert not caplog.messages
    assert set(known_splits(root, find_benchmark(root, "pets"))["test"].labels) == {1, 2}
    import_set(root, write_folders(tmp_path / "other", ["cat", "dog"]), "pets", "train", replace=True)
    assert caplog.messages[-1] == (
        "pets/test: has images of class rabbit, which the new training split does not have; import it again"
    )


def test_splits_of_which_one_has_no_names_are_matched_by_number_with_a_warning(tmp_path, caplog):
    named = coloured(["cat", "dog"] * 10, ["cat", "dog"])
    save(named._replace(classes=()), tmp_path, "pets", "train")
    save(named, tmp_path, "pets", "test")
    assert set(known_splits(tmp_path, find_benchmark(tmp_path, "pets"))["test"].labels) == {0, 1}
    assert caplog.messages == [
        "pets/train: its classes have no names, those of pets/test have; both are matched by number; check that the "
        "numbers agree, or import pets/train again, with names"
    ]
    caplog.clear()
    import_set(tmp_path, write_folders(tmp_path / "new", ["cat", "dog"]), "pets", "val")
    assert "pets/train: its classes have no names, those of pets/val have" in caplog.text


COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"  # café, as Linux and Windows write it, and as macOS does


@pytest.mark.parametrize(("of_train", "of_test"), [(COMPOSED, DECOMPOSED), (DECOMPOSED, COMPOSED)])
def test_names_in_another_unicode_form_are_the_same_class(tmp_path, monkeypatch, caplog, of_train, of_test):
    caplog.set_level(logging.INFO, "moon")
    for name in (COMPOSED, DECOMPOSED):
        monkeypatch.setitem(COLOURS, name, (9, 99, 199))
    # In the order of code points, cafe with an accent is before cafz, and café with one character behind it.
    monkeypatch.setitem(COLOURS, "cafz", (199, 99, 9))
    write_folders(tmp_path / "shops" / "train", [of_train, "cafz"])
    write_folders(tmp_path / "shops" / "test", [of_test, "cafz"])
    root = tmp_path / "data"
    import_splits(root, tmp_path / "shops", "shops")
    assert f"shops/test: class {of_test!a} is in shops/train, in another Unicode form" in caplog.messages
    splits = known_splits(root, find_benchmark(root, "shops"))
    assert splits["train"].classes == splits["test"].classes == tuple(sorted([of_train, "cafz"]))
    assert (nearest_colour(splits["train"], splits["test"].images) == splits["test"].labels).all()
    caplog.clear()
    import_set(root, tmp_path / "shops" / "train", "shops", "train", replace=True)
    import_set(root, tmp_path / "shops" / "test", "other", "test")
    import_set(root, tmp_path / "shops" / "train", "other", "train")  # after its test split
    assert not [record for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.skipif(sys.platform == "darwin", reason="its file system does not keep the two apart")
def test_two_folders_whose_names_differ_in_their_unicode_form_only_are_rejected(tmp_path, monkeypatch):
    for name in (COMPOSED, DECOMPOSED):
        monkeypatch.setitem(COLOURS, name, (9, 99, 199))
        write_folders(tmp_path / "shops" / "train", [name])
    what = (
        f"{tmp_path}/shops/train: two classes are called '{COMPOSED}' in two Unicode forms "
        f"({DECOMPOSED!a} and {COMPOSED!a}); rename one, or merge them"
    )
    with pytest.raises(DataError) as error:
        import_splits(tmp_path / "data", tmp_path / "shops", "shops")
    assert str(error.value) == what
    (tmp_path / "benchmarks.toml").write_text("[shops]\nfolder = 'shops'\n")
    with pytest.raises(DataError) as error:  # images that stay on disk
        find_benchmark(tmp_path, "shops")
    assert str(error.value) == what


@pytest.mark.parametrize("name", ["unknown", "Unknown"])
def test_a_known_class_cannot_have_the_name_of_the_answer_unknown(tmp_path, monkeypatch, name):
    monkeypatch.setitem(COLOURS, name, (9, 99, 199))
    write_folders(tmp_path / "pets" / "train", ["cat", name])
    what = (
        f"pets/train: a known class is called '{name}', which is also the answer about images of no known class; give"
    )
    for imported in (
        lambda: import_splits(tmp_path / "data", tmp_path / "pets", "pets"),
        lambda: import_set(tmp_path / "data", tmp_path / "pets" / "train", "pets", "train"),
    ):
        with pytest.raises(DataError, match=what):
            imported()
    assert not (tmp_path / "data" / "pets").exists()
    import_set(tmp_path / "data", tmp_path / "pets" / "train", "strays")  # a set of unknown images
    for split in ("train", "test"):  # written by hand
        save(coloured(["cat", name] * 10, ["cat", name]), tmp_path, "pets", split)
    with pytest.raises(DataError, match=what):
        known_splits(tmp_path, find_benchmark(tmp_path, "pets"))
