"""Sets are added to a data root without overwriting others."""

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, hold_out, import_set, load


@pytest.fixture
def sources(tmp_path):
    """Two class folders with one image each."""
    for name, value in (("one", 9), ("two", 200)):
        (tmp_path / name / "class").mkdir(parents=True)
        Image.new("RGB", (40, 40), (value, 0, 0)).save(tmp_path / name / "class" / "a.png")
    return tmp_path / "one", tmp_path / "two"


def test_an_imported_set_can_be_loaded(sources, tmp_path):
    saved = import_set(tmp_path, sources[0], "mine", "train", size=16)
    assert saved.is_new
    assert saved.path == tmp_path / "mine" / "train.npz"
    assert saved.dataset.images.shape == (1, 16, 16, 3)
    assert np.array_equal(load(tmp_path, "mine", "train").images, saved.dataset.images)


def test_paths_of_an_image_list_are_relative_to_the_image_root(sources, tmp_path):
    (tmp_path / "list.txt").write_text("class/a.png 7")
    saved = import_set(tmp_path, tmp_path / "list.txt", "mine", image_root=sources[1])
    assert saved.dataset.labels.tolist() == [7]
    assert saved.dataset.images[0, 0, 0].tolist() == [200, 0, 0]


def test_other_images_are_overwritten_only_on_request(sources, tmp_path):
    first = import_set(tmp_path, sources[0], "mine").path.read_bytes()
    assert not import_set(tmp_path, sources[0], "mine").is_new
    with pytest.raises(ValueError, match="exists with other images; choose another name, or replace it"):
        import_set(tmp_path, sources[1], "mine")
    assert (tmp_path / "mine" / "test.npz").read_bytes() == first
    assert import_set(tmp_path, sources[1], "mine", replace=True).is_new
    assert (tmp_path / "mine" / "test.npz").read_bytes() != first


@pytest.mark.parametrize(
    ("name", "kind", "what"),
    [
        ("letters", ValueError, "the name of an embedded set"),
        ("cifar10-v1.5", ValueError, "is read from OpenOOD's image lists"),
        ("../x", DataError, "is not a valid data set name"),
        ("known", DataError, "is not a valid data set name: .* keys of scores"),
        ("near", DataError, "is not a valid data set name: .* keys of scores"),
        ("far", DataError, "is not a valid data set name: .* keys of scores"),
    ],
)
def test_invalid_names_are_rejected_before_anything_is_read(tmp_path, name, kind, what):
    with pytest.raises(kind, match=what):
        import_set(tmp_path, tmp_path / "missing", name)
    with pytest.raises(kind, match=what):
        hold_out(tmp_path, "missing", name)


def test_invalid_splits_are_rejected(sources, tmp_path):
    with pytest.raises(ValueError, match="split must be train, val or test, not 'tets', did you mean 'test'"):
        import_set(tmp_path, sources[0], "mine", "tets")


def test_held_out_images_are_removed_from_the_training_images(data_root):
    train, test = hold_out(data_root, "mnist", "held", share=0.2)
    assert (train.path.name, test.path.name) == ("train.npz", "test.npz")
    source = load(data_root, "mnist", "train")
    pixels = [{image.tobytes() for image in part.images} for part in (source, train.dataset, test.dataset)]
    assert pixels[0] == pixels[1] | pixels[2]
    assert not pixels[1] & pixels[2]
    assert len(test.dataset.labels) == pytest.approx(0.2 * len(source.labels), rel=0.1)
    assert set(test.dataset.labels) == set(source.labels)
    assert not any(saved.is_new for saved in hold_out(data_root, "mnist", "held", share=0.2))


@pytest.mark.parametrize(
    ("name", "share", "what"),
    [
        ("held", 1.0, "share must be above 0 and below 1, not 1"),
        ("held", 0.0, "share must be above 0"),
        ("cifar10", 0.1, "'cifar10' is the name of a benchmark; choose another name"),
        ("mnist", 0.1, "'mnist' is the set that images are held out of"),
    ],
)
def test_invalid_requests_to_hold_out_are_rejected(data_root, name, share, what):
    with pytest.raises(ValueError, match=what):
        hold_out(data_root, "mnist", name, share)
