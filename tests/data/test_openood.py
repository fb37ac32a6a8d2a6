"""OpenOOD's layout in miniature: short lists of images made here."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from moon.data import (
    BENCHMARKS,
    DataError,
    ImageList,
    find_benchmark,
    has_set,
    known_splits,
    open_set,
    openood as module,
)
from moon.recipe import make_recipe
from moon.run import BenchmarkImages, train_run
from moon.score import score_run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """cifar10 with unknown sets of a few images each; lists with CRLF; one set in the other image folder."""
    sizes = {
        ("cifar10", "v1"): {"test_tin": 4, "test_cifar10": 20},
        ("cifar10", "v1.5"): {"test_tin": 3, "test_cifar10": 20},
    }
    monkeypatch.setattr(module, "LIST_SIZES", sizes)

    def publish(split, name, count, label=None, folder="images_classic"):
        lines = []
        for index in range(count):
            path = f"{name}/{split}/{index:04d}.png"
            target = tmp_path / folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (40, 36), (10 * index, sum(map(ord, split)) % 256, sum(map(ord, name)) % 256)).save(target)
            lines.append(f"{path} {index % 10 if label is None else label}")
        target = tmp_path / "benchmark_imglist" / "cifar10" / f"{split}_{name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes("\r\n".join(lines).encode() + b"\r\n")

    publish("train", "cifar10", 20)
    publish("val", "cifar10", 10)
    publish("test", "cifar10", 20)
    publish("test", "tin", 3, -1)
    publish("val", "tin", 2, -1)
    publish("test", "texture", 4, -1, folder="images_largescale")
    return tmp_path


def test_sets_are_read_from_the_lists(root):
    benchmark = find_benchmark(root, "cifar10-v1.5")
    assert (benchmark.lists, benchmark.known_set, benchmark.validation) == ("v1.5", "cifar10", ("tin",))
    splits = known_splits(root, benchmark)
    assert {split: len(data.labels) for split, data in splits.items()} == {"train": 20, "val": 10, "test": 20}
    assert splits["train"].images.shape == (20, 32, 32, 3)
    assert splits["test"].images[3, 0, 0, 0] == 30
    unknown = open_set(root, "texture", "test", benchmark)
    assert unknown.labels.tolist() == [-1] * 4
    assert has_set(root, "tin", "test", benchmark)
    assert not has_set(root, "svhn", "test", benchmark)


def test_missing_sets_are_skipped_and_validation_lists_are_used_for_tuning(root):
    images = BenchmarkImages.open(root, "cifar10-v1.5", tune_on=("tin",))
    assert list(images.unknown) == ["tin", "texture"]
    assert images.missing == ("cifar100", "mnist", "svhn", "places365")
    assert len(images.tuning["tin"].labels) == 2
    with pytest.raises(ValueError, match="'cifar10' is the known set"):
        BenchmarkImages.open(root, "cifar10-v1.5", near=("cifar10",))


def test_images_are_decoded_once(root, monkeypatch):
    benchmark = find_benchmark(root, "cifar10-v1.5")
    first = open_set(root, "tin", "test", benchmark)
    monkeypatch.setattr(module, "read_list", None)
    second = open_set(root, "tin", "test", benchmark)
    assert np.array_equal(first.images, second.images)
    path = root / "benchmark_imglist" / "cifar10" / "test_tin.txt"
    path.write_text(path.read_text().replace("0000.png", "0001.png"))
    with pytest.raises(TypeError):  # a changed list is not in the cache
        open_set(root, "tin", "test", benchmark)


def test_changed_images_are_decoded_again(root):
    benchmark = find_benchmark(root, "cifar10-v1.5")
    first = open_set(root, "tin", "test", benchmark)
    path = root / "images_classic" / "tin" / "test" / "0001.png"
    Image.new("RGB", (40, 36), (250, 251, 252)).save(path)
    second = open_set(root, "tin", "test", benchmark)
    assert second.images[1, 0, 0].tolist() == [250, 251, 252]
    assert np.array_equal(first.images[[0, 2]], second.images[[0, 2]])


def test_mixed_versions_are_rejected(root):
    with pytest.raises(
        DataError, match=r"3 images, as in the list of v1.5; this benchmark is v1 \(4\). Use cifar10-v1.5"
    ):
        BenchmarkImages.open(root, "cifar10-v1")
    path = root / "benchmark_imglist" / "cifar10" / "test_cifar10.txt"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:5]))
    with pytest.raises(DataError, match=r"the list of OpenOOD v1.5 has 20. Is it truncated"):
        BenchmarkImages.open(root, "cifar10-v1.5")


def test_listed_images_must_exist_inside_the_root(root):
    benchmark = find_benchmark(root, "cifar10-v1.5")
    path = root / "benchmark_imglist" / "cifar10" / "test_texture.txt"
    path.write_text("nowhere/1.png -1\n")
    with pytest.raises(DataError, match=r"nowhere/1.png is neither under"):
        open_set(root, "texture", "test", benchmark)
    (root / "outside.png").write_bytes(b"")
    path.write_text("../outside.png -1\n")
    with pytest.raises(DataError, match="is outside the root"):
        open_set(root, "texture", "test", benchmark)
    with pytest.raises(DataError, match="no such list; put OpenOOD's benchmark_imglist under"):
        open_set(root, "svhn", "test", benchmark)


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """ImageNet in miniature: three classes of coloured images, streamed from disk."""
    small = replace(BENCHMARKS["imagenet-v1.5"], num_known=3, size=28, resize=32, net="lenet-norm")
    monkeypatch.setitem(BENCHMARKS, "imagenet-v1.5", small)
    monkeypatch.setattr(module, "LIST_SIZES", {("imagenet", "v1.5"): {}})
    rng = np.random.default_rng(0)
    for split, name, count, label in (
        ("train", "imagenet", 24, None), ("val", "imagenet", 6, None), ("test", "imagenet", 12, None),
        ("test", "ninco", 6, -1), ("test", "textures", 6, -1), ("val", "openimage_o", 4, -1),
    ):  # fmt: skip
        lines = []
        for index in range(count):
            path = f"{name}/{split}/{index}.png"
            (tmp_path / "images_largescale" / path).parent.mkdir(parents=True, exist_ok=True)
            pixels = rng.integers(0, 100, (40, 50, 3), dtype=np.uint8)
            pixels[..., index % 3] += 120
            Image.fromarray(pixels).save(tmp_path / "images_largescale" / path)
            lines.append(f"{path} {index % 3 if label is None else label}")
        target = tmp_path / "benchmark_imglist" / "imagenet" / f"{split}_{name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines))
    return tmp_path


@pytest.mark.slow
def test_a_run_on_images_that_stay_on_disk(imagenet, tmp_path):
    images = BenchmarkImages.open(imagenet, "imagenet-v1.5", tune_on=("openimage_o",))
    assert isinstance(images.splits["train"], ImageList)
    assert images.missing == ("ssb_hard", "inaturalist", "openimage_o")
    settings = {"epochs": 3, "batch_size": 8, "sparsity": 0.5, "delta_t_steps": 2}
    recipe = make_recipe(images.benchmark, "moon", options={"quiet_epochs": 1}, **settings)
    result = train_run(recipe, tmp_path / "run", images)
    assert result["images"] == {"train": 24, "test": 12, "val": 6}
    scores, _ = score_run(tmp_path / "run", images, ["msp", "odin", "gen"])
    assert list(scores["detectors"]["msp"]["sets"]) == ["ninco", "textures"]
    assert scores["search"]["gen"]["on"] == {"openimage_o": 4}
    assert train_run(recipe, tmp_path / "run", images) == result
    path = imagenet / "benchmark_imglist" / "imagenet" / "train_imagenet.txt"
    path.write_text("\n".join(path.read_text().splitlines()[::-1]))
    with pytest.raises(DataError, match="other images"):
        train_run(recipe, tmp_path / "run", BenchmarkImages.open(imagenet, "imagenet-v1.5"))
