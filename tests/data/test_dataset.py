from contextlib import suppress

import numpy as np
import pytest

from moon.data import DataError, DataSet, checked, fit_to, load, save, split_off


def images(count=4, height=8, width=8, channels=3):
    return np.random.default_rng(0).integers(0, 256, (count, height, width, channels)).astype(np.uint8)


def test_what_is_saved_comes_back(tmp_path):
    data = DataSet(images(), np.array([0, 1, 2, -1]))
    assert save(data, tmp_path, "mine", "test") == tmp_path / "mine" / "test.npz"
    back = load(tmp_path, "mine", "test")
    assert np.array_equal(back.images, data.images)
    assert np.array_equal(back.labels, data.labels)
    assert list((tmp_path / "mine").iterdir()) == [tmp_path / "mine" / "test.npz"]


def test_grey_images_may_lack_the_channel_axis():
    assert checked(images()[..., 0], np.zeros(4, int), "x").images.shape == (4, 8, 8, 1)


@pytest.mark.parametrize(
    ("x", "y", "what"),
    [
        (images(), np.zeros(3, int), "4 images but 3 labels"),
        (images(), np.zeros(5, int), "4 images but 5 labels"),
        (images().astype(np.float32), np.zeros(4, int), "must be uint8"),
        (images(channels=2), np.zeros(4, int), "must be uint8"),
        (images()[0, 0], np.zeros(8, int), "must be uint8"),
        (images(), np.zeros(4), "whole numbers"),
        (images(), np.zeros((4, 1), int), "whole numbers"),
        (images(0), np.zeros(0, int), "no images"),
        (images(), np.array([0, 0, -2, 0]), "label -2 of image 2"),
    ],
)
def test_bad_arrays_are_refused_with_their_file(tmp_path, x, y, what):
    (tmp_path / "a").mkdir()
    np.savez(tmp_path / "a" / "train.npz", images=x, labels=y)
    with pytest.raises(DataError, match=rf"a/train\.npz: .*{what}"):
        load(tmp_path, "a", "train")


def test_unreadable_files_are_refused_with_their_name(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(DataError, match=r"train\.npz: no such file"):
        load(tmp_path, "a", "train")
    (tmp_path / "a" / "train.npz").write_bytes(b"PK but no zip")
    with pytest.raises(DataError, match=r"train\.npz: cannot be read"):
        load(tmp_path, "a", "train")
    np.savez(tmp_path / "a" / "train.npz", images=images())
    with pytest.raises(DataError, match="has no array 'labels'"):
        load(tmp_path, "a", "train")
    np.savez(tmp_path / "a" / "train.npz", images=images(), labels=np.array([{}] * 4, dtype=object))
    with pytest.raises(DataError, match=r"train\.npz: cannot be read"):  # a pickle inside is not executed
        load(tmp_path, "a", "train")


def test_every_kind_of_damage_to_a_file_is_one_error(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "train.npz"
    np.savez_compressed(path, images=images(), labels=np.zeros(4, int))
    whole = path.read_bytes()
    chance = np.random.default_rng(0)
    for _ in range(200):
        content = bytearray(whole)
        for at in chance.integers(0, len(whole), 4):
            content[at] ^= int(chance.integers(1, 256))
        path.write_bytes(content)
        with suppress(DataError):  # it is read, or refused as data are
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


def test_fit_to_covers_and_crops():
    wide = np.zeros((1, 4, 8, 1), np.uint8)
    wide[:, :, 2:6] = 200
    out = fit_to(DataSet(wide, np.zeros(1, int)), 4, 4, 1)
    assert out.images.shape == (1, 4, 4, 1)
    assert (out.images == 200).all()
    assert fit_to(DataSet(images(3, 28, 28, 1), np.zeros(3, int)), 32, 32, 3).images.shape == (3, 32, 32, 3)


def test_split_off_takes_a_share_of_each_class():
    labels = np.array([0] * 20 + [1] * 10 + [2])
    data = DataSet(images(31), labels)
    part, rest = split_off(data, 0.1)
    assert part.labels.tolist() == [0, 0, 1]
    assert np.array_equal(part.images[0], data.images[0])
    assert len(rest.labels) == 28  # a class of one stays whole


def test_a_published_set_is_told_from_another(monkeypatch):
    from moon.data import arrays

    data = DataSet(np.arange(2 * 4 * 4, dtype=np.uint8).reshape(2, 4, 4, 1), np.array([0, 1]))
    monkeypatch.setattr(arrays, "PUBLISHED", {("mine", "test"): (2, data.digest())})
    assert arrays.verify(data, "mine", "test") == "the published set, bit for bit"
    assert "1 images, the published set has 2" in arrays.verify(data.take(np.array([0])), "mine", "test")
    assert "none is published here" in arrays.verify(data, "other", "test")
    for other in (
        data._replace(labels=np.array([1, 0])),
        data.take(np.array([1, 0])),
        data._replace(images=255 - data.images),
    ):
        with pytest.raises(DataError, match="other pixels, labels or order"):
            arrays.verify(other, "mine", "test")
