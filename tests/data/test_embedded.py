import numpy as np
import pytest

from moon.data import DataError, embedded as module
from moon.data.embedded import embedded


def test_digits_are_split_without_overlap():
    sets = {split: embedded("digits", split) for split in ("train", "val", "test")}
    assert {split: len(d.labels) for split, d in sets.items()} == {"train": 3500, "val": 500, "test": 1000}
    for data in sets.values():
        assert set(np.bincount(data.labels)) == {len(data.labels) // 10}
    hashes = [image.tobytes() for data in sets.values() for image in data.images]
    assert len(set(hashes)) == 5000


@pytest.mark.parametrize("name", ["letters", "textures", "photos"])
def test_unknown_sets(name):
    data = embedded(name, "test")
    assert data.images.shape == (1000, 28, 28, 1)
    assert set(data.labels) == {-1}
    assert data.images.reshape(1000, -1).std(1).min() > 8  # none is uniform
    assert len({image.tobytes() for image in data.images}) > 950
    with pytest.raises(DataError, match="not 'train'"):
        embedded(name, "train")


def test_letters_are_centred_and_scaled_like_digits():
    letters, digits = embedded("letters", "test").images, embedded("digits", "test").images
    assert not letters[:, :3].any()
    assert not letters[:, -3:].any()
    assert 0.5 < letters.mean() / digits.mean() < 2


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(DataError, match="'matplotlib': pip install mlxtend scikit-image"):
        module.letters("test")
