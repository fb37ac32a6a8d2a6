from contextlib import suppress

import numpy as np
import pytest

from moon.data import DataError, DataSet, as_dataset, check_name, fit_to, load, path_of, save, split_off


def images(count=4, height=8, width=8, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels)).astype(np.uint8)


def test_save_and_load_round_trip(tmp_path):
    data = DataSet(images(), np.array([0, 1, 2, -1]))
    assert save(data, tmp_path, "mine", "test") == tmp_path / "mine" / "test.npz"
    back = load(tmp_path, "mine", "test")
    assert np.array_equal(back.images, data.images)
    assert np.array_equal(back.labels, data.labels)
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "test.npz"]


def test_grey_images_may_lack_the_channel_axis():
    assert as_dataset(images()[..., 0], np.zeros(4, int), "x").images.shape == (4, 8, 8, 1)


@pytest.mark.parametrize(
    ("x", "y", "what"),
    [
        (images(), np.zeros(3, int), "4 images but 3 labels"),
        (images(), np.zeros(5, int), "4 images but 5 labels"),
        (images().astype(np.float32), np.zeros(4, int), "must be uint8"),
        (images(channels=2), np.zeros(4, int), "must be uint8"),
        (images()[0, 0], np.zeros(8, int), "must be uint8"),
        (images(), np.zeros(4), "integers"),
        (images(), np.zeros((4, 1), int), "integers"),
        (images(0), np.zeros(0, int), "no images"),
        (images(), np.array([0, 0, -2, 0]), "label -2 of image 2"),
    ],
)
def test_invalid_arrays_are_rejected_naming_the_file(tmp_path, x, y, what):
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "a" / "train.npz", images=x, labels=y)
    with pytest.raises(DataError, match=rf"a/train\.npz: .*{what}"):
        load(tmp_path, "a", "train")


def test_unreadable_files_are_rejected_naming_the_file(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"train\.npz: no such file"):
        load(tmp_path, "a", "train")
    (tmp_path / "a" / "train.npz").write_bytes(b"PK but no zip")
    with pytest.raises(DataError, match=r"train\.npz: cannot be read"):
        load(tmp_path, "a", "train")
    np.savez(tmp_path / "a" / "train.npz", images=images())
    with pytest.raises(DataError, match=r"has no array 'labels'.*; labels are one integer per image"):
        load(tmp_path, "a", "train")
    for empty in (np.array([]), np.array([], int)):
        np.savez(tmp_path / "a" / "train.npz", images=images(), labels=empty)
        with pytest.raises(DataError, match=r"4 images but no labels; there must be one label per image, -1 if"):
            load(tmp_path, "a", "train")
    np.savez(tmp_path / "a" / "train.npz", images=images(), labels=np.array([{}] * 4, dtype=object))
    with pytest.raises(DataError, match=r"cannot be read .* array of Python objects"):  # a pickle is never executed
        load(tmp_path, "a", "train")


def test_any_damage_to_a_file_is_a_data_error(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "train.npz"
    np.savez_compressed(path, images=images(), labels=np.zeros(4, int))
    intact = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(200):
        content = bytearray(intact)
        for position in rng.integers(0, len(intact), 4):
            content[position] ^= int(rng.integers(1, 256))
        path.write_bytes(content)
        with suppress(DataError):  # no other error
            load(tmp_path, "a", "train")
    np.save(tmp_path / "a.npy", images())
    path.write_bytes((tmp_path / "a.npy").read_bytes())
    with pytest.raises(DataError, match="cannot be read"):
        load(tmp_path, "a", "train")


def test_fit_to_converts_channels():
    grey = DataSet(images(channels=1), np.zeros(4, int))
    rgb = fit_to(grey, 8, 8, 3)
    assert np.array_equal(rgb.images, grey.images.repeat(3, 3))
    assert np.array_equal(fit_to(rgb, 8, 8, 1).images, grey.images)
    red = DataSet(np.full((1, 8, 8, 3), [255, 0, 0], np.uint8), np.zeros(1, int))
    assert fit_to(red, 8, 8, 1).images[0, 0, 0, 0] == 76


def test_fit_to_covers_the_target_and_crops_the_centre():
    wide = np.zeros((1, 4, 8, 1), np.uint8)
    wide[:, :, 2:6] = 200
    out = fit_to(DataSet(wide, np.zeros(1, int)), 4, 4, 1)
    assert out.images.shape == (1, 4, 4, 1)
    assert (out.images == 200).all()
    assert fit_to(DataSet(images(3, 28, 28, 1), np.zeros(3, int)), 32, 32, 3).images.shape == (3, 32, 32, 3)


def test_split_off_takes_the_first_share_of_each_class():
    labels = np.array([0] * 20 + [1] * 10 + [2])
    data = DataSet(images(31), labels)
    part, rest = split_off(data, 0.1)
    assert part.labels.tolist() == [0, 0, 1]
    assert np.array_equal(part.images[0], data.images[0])
    assert len(rest.labels) == 28  # a class with one image is not split


@pytest.mark.parametrize("name", ["../other", "a/b", ".hidden", ""])
def test_names_that_lead_out_of_the_root_are_rejected(tmp_path, name):
    with pytest.raises(DataError, match="is not a valid data set name"):
        path_of(tmp_path, name, "test")
    with pytest.raises(DataError, match="is not a valid split name"):
        path_of(tmp_path, "mine", name)


@pytest.mark.parametrize("name", ["known", "near", "far"])
def test_keys_of_scores_and_tables_are_rejected_as_names(tmp_path, name):
    message = rf"'{name}' is not a valid data set name: 'known', 'near' and 'far' are keys .*; choose another name"
    with pytest.raises(DataError, match=f"^here: {message}"):
        check_name(name, "here")
    data = DataSet(images(), np.arange(4))
    for use in (lambda: path_of(tmp_path, name, "test"), lambda: load(tmp_path, name, "test"),
                lambda: save(data, tmp_path, name, "test")):  # fmt: skip
        with pytest.raises(DataError, match=message):
            use()
    assert not list(tmp_path.iterdir())


def test_save_writes_the_arrays_uncompressed_as_numpy_does(tmp_path):
    data = DataSet(images(), np.arange(4))
    path = save(data, str(tmp_path), "mine", "test")
    with (tmp_path / "expected.npz").open("wb") as file:
        np.savez(file, images=data.images, labels=data.labels)
    assert path.read_bytes() == (tmp_path / "expected.npz").read_bytes()


def test_names_of_classes_are_kept(tmp_path):
    data = DataSet(images(), np.array([0, 1, 2, -1]), ("cat", "dog", "chinchilla"))
    save(data, tmp_path, "mine", "test")
    assert load(tmp_path, "mine", "test").classes == data.classes
    for kept in (data.take(data.labels > 0), fit_to(data, 4, 4, 1), *split_off(data, 0.5)):
        assert kept.classes == data.classes
    assert data.digest() == data._replace(classes=()).digest()
    np.savez(tmp_path / "mine" / "test.npz", images=data.images, labels=data.labels)
    assert load(tmp_path, "mine", "test").classes == ()


@pytest.mark.parametrize(
    ("classes", "what"),
    [
        ([["a", "b"]], r"classes are <U1 of shape \(1, 2\); they must be strings"),
        ([1, 2, 3], r"classes are int64 of shape \(3,\); they must be strings"),
        (["a", "b", "a"], "two classes are called 'a'; names must differ"),
        (["a", " ", "b"], "class 1 has an empty name"),
        (["a", "b"], "label 2, but there are only 2 names"),
    ],
)
def test_invalid_names_of_classes_are_rejected(tmp_path, classes, what):
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "a" / "train.npz", images=images(), labels=np.array([0, 1, 2, -1]), classes=np.array(classes))
    with pytest.raises(DataError, match=rf"a/train\.npz: .*{what}"):
        load(tmp_path, "a", "train")
