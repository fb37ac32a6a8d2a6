"""Class folders that are streamed from disk, declared in benchmarks.toml."""

import numpy as np
import pytest
from PIL import Image

from moon import BenchmarkImages, DataError, find_benchmark, make_recipe, score_run, train_run
from moon.data import DataSet, ImageList, count_images, evaluation_batches, has_set, known_splits, save

COLOURS = {"blue": (40, 40, 200), "red": (200, 40, 40)}
DECLARED = '[photos]\nfolder = "photos"\nsize = 28\nresize = 32\nnear = ["other"]\nnet = "lenet"\n'


@pytest.fixture
def root(tmp_path):
    """A data root with class folders of large photos, and an unknown set in memory."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 12), ("test", 20)):
        for name, colour in COLOURS.items():
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(rng.normal(colour, 20, (40, 60, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / f"{index:02}.png")
    save(DataSet(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), np.zeros(20, int)), tmp_path, "other", "test")
    (tmp_path / "benchmarks.toml").write_text(DECLARED)
    return tmp_path


def test_the_images_stay_on_disk(root):
    benchmark = find_benchmark(root, "photos")
    assert (benchmark.num_known, benchmark.size, benchmark.resize, benchmark.channels) == (2, 28, 32, 3)
    assert [has_set(root, "photos", split, benchmark) for split in ("train", "val", "test")] == [True, False, True]
    assert count_images(root, "photos", "train", benchmark) == 24
    splits = known_splits(root, benchmark)
    assert all(isinstance(images, ImageList) for images in splits.values())
    assert {split: len(images.paths) for split, images in splits.items()} == {"train": 24, "test": 36, "val": 4}
    assert splits["val"].classes == ("blue", "red")
    assert splits["train"].paths[0] == "train/blue/00.png"


def test_a_run_is_trained_and_scored(root, tmp_path):
    images = BenchmarkImages.open(root, "photos")
    recipe = make_recipe("photos", "cross-entropy", root=root, sparsity=0.5, epochs=2, batch_size=8, optimizer="adamw")
    result = train_run(recipe, tmp_path / "run", images)
    assert result["images"] == {"train": 24, "test": 36, "val": 4}
    summary, _ = score_run(tmp_path / "run", images, ["msp"])
    assert list(summary["detectors"]["msp"]["sets"]) == ["other"]
    (root / "benchmarks.toml").write_text(DECLARED.replace("resize = 32", "resize = 30"))
    with pytest.raises(DataError, match=r"was started with another preparation .* \(resize = 32\)"):
        score_run(tmp_path / "run", BenchmarkImages.open(root, "photos"), ["msp"])


def test_photos_are_rotated_as_their_exif_orientation_says(root):
    pixels = np.zeros((40, 40, 3), np.uint8)
    pixels[:20] = 255  # the upper half is white
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    for path in (root / "photos" / "test" / "red").iterdir():
        Image.fromarray(pixels).save(path, exif=exif)
    benchmark = find_benchmark(root, "photos")
    red = known_splits(root, benchmark)["test"]
    x, _ = next(iter(evaluation_batches(red.take(red.labels == 1), benchmark, "cpu")))
    assert x[:, :, :10].max() < x[:, :, -10:].min()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"photos"', '"nowhere"', "there is no folder"),
        ('"photos"', "3", "'folder' must be a string"),
        ("size = 28", "size = 64", "8 <= size <= resize <= 1024"),
        ("size = 28", "size = true", "must be integers"),
        ("size = 28", "size = [28, 40, 3]", r"size may be \[height, width\]"),
        ("resize = 32", "flip = false", "'flip' cannot be used with 'folder'"),
        ("resize = 32", "sise = 3", "has an unknown field 'sise'"),
        ('"other"', '"others"', "names 'others'"),
    ],
)
def test_a_wrong_declaration_is_explained(root, old, new, message):
    (root / "benchmarks.toml").write_text(DECLARED.replace(old, new, 1))
    with pytest.raises(DataError, match=message):
        find_benchmark(root, "photos")


def test_a_class_without_training_images_is_an_error(root):
    (root / "photos" / "test" / "green").mkdir()
    Image.new("RGB", (40, 40)).save(root / "photos" / "test" / "green" / "1.png")
    with pytest.raises(DataError, match="has images of class green, which photos/train does not have"):
        known_splits(root, find_benchmark(root, "photos"))


def test_equal_files_in_two_splits_are_reported(root, caplog):
    benchmark = find_benchmark(root, "photos")
    known_splits(root, benchmark)
    assert not [message for message in caplog.messages if "as well" in message]
    for index in (0, 1, 2):
        train = root / "photos" / "train" / "red" / f"{index:02}.png"
        (root / "photos" / "test" / "red" / f"copy{index}.png").write_bytes(train.read_bytes())
    known_splits(root, benchmark)
    (message,) = [message for message in caplog.messages if "as well" in message]
    assert message.startswith("photos/test: 3 of 43 images are training images as well")
