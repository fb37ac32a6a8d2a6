"""Sets are added to a data root without overwriting others."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, DataSet, hold_out, import_set, import_splits, load, save


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
    ],
)
def test_invalid_names_are_rejected_before_anything_is_read(tmp_path, name, kind, what):
    with pytest.raises(kind, match=what):
        import_set(tmp_path, tmp_path / "missing", name)
    with pytest.raises(kind, match=what):
        hold_out(tmp_path, "missing", name)


def test_invalid_splits_are_rejected(sources, tmp_path):
    with pytest.raises(ValueError, match=r"split must be train, val or test, not 'tets' \(did you mean 'test'"):
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


def write_splits(root, **classes):
    """`<split>/<class>/<image>` with two images per class, in another shade of grey in each split and class."""
    for split, names in classes.items():
        for index, name in enumerate(names):
            (root / split / name).mkdir(parents=True)
            for image in range(2):
                shade = 60 * len(split) % 200 + 10 * index + image
                Image.new("RGB", (40, 30), (shade, 0, 0)).save(root / split / name / f"{image}.png")
    return root


def test_all_splits_are_imported_at_once(tmp_path):
    source = write_splits(tmp_path / "photos", Train=["cat", "dog", "rabbit"], valid=["dog"], test=["cat", "rabbit"])
    saved = import_splits(tmp_path / "data", source, "pets", size=16)
    assert [one.path.name for one in saved] == ["train.npz", "val.npz", "test.npz"]
    assert [one.dataset.labels.tolist() for one in saved] == [[0, 0, 1, 1, 2, 2], [1, 1], [0, 0, 2, 2]]
    for one in saved:
        stored = load(tmp_path / "data", "pets", one.path.stem)
        assert stored.classes == one.dataset.classes == ("cat", "dog", "rabbit")
        assert stored.images.shape[1:] == (16, 16, 3)
        assert stored.labels.tolist() == one.dataset.labels.tolist()
    assert not any(one.is_new for one in import_splits(tmp_path / "data", source, "pets", size=16))


def test_all_splits_are_checked_before_one_is_saved(tmp_path):
    source = write_splits(tmp_path / "photos", train=["cat", "dog"], test=["cat", "hamster"])
    with pytest.raises(DataError, match="pets/test: has images of class hamster, which pets/train does not have"):
        import_splits(tmp_path / "data", source, "pets")
    assert not (tmp_path / "data").exists()
    source = write_splits(tmp_path / "more", train=["cat", "dog"], test=["cat"])
    import_set(tmp_path / "data", source / "train", "pets", "test")
    with pytest.raises(ValueError, match=r"test\.npz: exists with other images"):
        import_splits(tmp_path / "data", source, "pets")
    assert not (tmp_path / "data" / "pets" / "train.npz").exists()
    assert all(one.is_new for one in import_splits(tmp_path / "data", source, "pets", replace=True))
    with pytest.raises(DataError, match="train: contains no splits; expected train/<class>/<image>"):
        import_splits(tmp_path / "data", source / "train", "pets")


def test_size_and_channels_can_be_chosen_for_every_format(sources, tmp_path, caplog):
    caplog.set_level("INFO", "moon")
    assert import_set(tmp_path, sources[0], "a", grey=True).dataset.images.shape == (1, 32, 32, 1)
    (tmp_path / "test_batch.bin").write_bytes(bytes([3]) + bytes(3072))
    assert import_set(tmp_path, tmp_path / "test_batch.bin", "b").dataset.images.shape == (1, 32, 32, 3)
    caplog.clear()
    saved = import_set(tmp_path, tmp_path / "test_batch.bin", "c", size=28, grey=True)
    assert saved.dataset.images.shape == (1, 28, 28, 1)
    assert caplog.messages == [
        f"{tmp_path / 'test_batch.bin'}: images resized from 32x32 to 28x28 (height x width): scaled to cover it, "
        "centre cropped"
    ]


@pytest.fixture
def flawed(tmp_path):
    """Class folders with images that are damaged, missing from a list or of 12 bits, and one image in two classes."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        Image.fromarray(np.full((8, 10), 4000, np.uint16)).save(tmp_path / "photos" / name / "deep.png")
        for number in range(4):
            (tmp_path / "photos" / name / f"bad{number}.png").write_bytes(b"no image")
    for path in ("cat/1.png", "cat/2.png", "dog/3.png"):
        Image.new("L", (10, 8), 8 * ord(path[4]) % 100).save(tmp_path / "photos" / path)
    (tmp_path / "photos" / "dog" / "copy.png").write_bytes((tmp_path / "photos" / "cat" / "2.png").read_bytes())
    lines = [f"{path.relative_to(tmp_path)} 0\n" for path in sorted((tmp_path / "photos").rglob("*.png"))]
    (tmp_path / "list.txt").write_text("".join([*lines, "photos/none.png 0\n"]))
    return tmp_path / "photos"


@pytest.mark.parametrize("is_list", [False, True])
def test_images_that_cannot_be_read_are_skipped_on_request(flawed, tmp_path, caplog, is_list):
    source = tmp_path / "list.txt" if is_list else flawed
    with pytest.raises(DataError):
        import_set(tmp_path, source, "mine", to_8_bit=4095)
    saved = import_set(tmp_path, source, "mine", size=8, to_8_bit=4095, skip_bad=True)
    assert [name.rpartition("photos/")[2] for name in saved.dataset.files] == [
        "cat/1.png", "cat/2.png", "cat/deep.png", "dog/3.png", "dog/copy.png", "dog/deep.png",
    ]  # fmt: skip
    lines = (tmp_path / "mine" / "test.skipped.txt").read_text().splitlines()
    assert len(lines) == 8 + is_list
    assert all("cannot be read as an image" in line for line in lines[:8])
    (message,) = [each for each in caplog.messages if "left out" in each]
    assert message.startswith(
        f"{8 + is_list} of {14 + is_list} images cannot be read and are left out ({flawed}/cat/bad0"
    )
    assert message.endswith(f"bad2.png, ...); {tmp_path}/mine/test.skipped.txt says why")


def test_an_image_of_two_classes_is_reported(flawed, tmp_path, caplog):
    import_set(tmp_path, flawed, "mine", to_8_bit=4095, skip_bad=True)
    (message,) = [each for each in caplog.messages if "two classes" in each]
    pairs = "cat/2.png and dog/copy.png, cat/deep.png and dog/deep.png"
    assert message == (
        f"{flawed}: 2 of 6 images are in two classes, with the same pixels: {pairs}; remove one of each, or both"
    )


@pytest.mark.parametrize(
    ("white", "pixel", "level", "what"),
    [
        (4095, 250, "INFO", "4,095 becomes 255; their largest value is 4,000"),
        (65535, 15, "WARNING", "65,535 becomes 255; their largest value is 4,000, so that images are too dark"),
        (255, 255, "WARNING", "255 becomes 255; their largest value is 4,000, so that images are too bright"),
    ],
)
def test_images_of_more_bits_keep_the_upper_8_on_request(flawed, tmp_path, caplog, white, pixel, level, what):
    caplog.set_level("INFO", "moon")
    data = import_set(tmp_path, flawed, "mine", to_8_bit=white, skip_bad=True).dataset
    assert (data.images[[file.endswith("deep.png") for file in data.files]] == pixel).all()
    (record,) = [each for each in caplog.records if "more than 8 bits" in each.getMessage()]
    assert record.levelname == level
    assert f"2 of 6 images have more than 8 bits per channel: {what}" in record.getMessage()


def test_images_may_be_higher_than_wide(tmp_path):
    (tmp_path / "photos" / "a").mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 60, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photos" / "a" / "1.png")
    (found,) = import_set(tmp_path, tmp_path / "photos", "mine", size=(20, 10)).dataset.images
    expected = Image.fromarray(pixels).resize((30, 20), Image.Resampling.BILINEAR).crop((10, 0, 20, 20))
    assert np.array_equal(found, np.asarray(expected))


def test_grey_images_among_others_are_said(tmp_path, caplog):
    source = write_splits(tmp_path / "photos", train=["cat", "dog"], test=["cat", "dog"])
    for path in (*source.glob("train/dog/*.png"), *source.glob("test/*/*.png")):
        Image.open(path).convert("L").save(path)
    caplog.set_level("INFO", "moon")
    import_splits(tmp_path / "data", source, "pets", size=30)
    mixed = f"{source / 'train'}: 2 of 4 images are grey (all of dog), stored as RGB; --grey makes all grey"
    assert mixed in caplog.messages
    assert f"{source / 'test'}: all images are grey, stored as RGB; --grey stores one channel" in caplog.messages
    caplog.clear()
    import_splits(tmp_path / "data", source, "grey", size=30, grey=True)
    assert not any("stored as RGB" in message for message in caplog.messages)


def test_validation_images_can_be_held_out_as_well(tmp_path):
    save(
        DataSet(np.arange(40 * 64).astype(np.uint8).reshape(40, 8, 8, 1), np.arange(40) % 2), tmp_path, "pets", "train"
    )
    train, test, val = hold_out(tmp_path, "pets", "held", 0.2, val_share=0.3)
    assert [saved.path.stem for saved in (train, test, val)] == ["train", "test", "val"]
    assert [np.bincount(saved.dataset.labels).tolist() for saved in (train, test, val)] == [[10, 10], [4, 4], [6, 6]]
    without = hold_out(tmp_path, "pets", "without", 0.2)
    assert np.array_equal(without[1].dataset.images, test.dataset.images)
    for share in (-0.1, 0.8, float("nan")):
        with pytest.raises(ValueError, match="val_share must be at least 0 and leave images to train on"):
            hold_out(tmp_path, "pets", "other", 0.2, val_share=share)


def test_a_root_that_cannot_be_written_is_refused_before_images_are_read(sources, tmp_path, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: Path(path) != tmp_path)
    monkeypatch.setattr("moon.data.importing.read_any", lambda *_: pytest.fail("images were read"))
    with pytest.raises(ValueError, match=r"root/mine: cannot be written \(.*\); choose another data root \(data\)"):
        import_set(tmp_path / "root", sources[0], "mine")
