"""OpenOOD's layout in small: lists and images made here, sizes of the lists made small."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, Listed, benchmark, has, known_sets, open_set
from moon.data import openood as module
from moon.recipe import build
from moon.run.images import Bench
from moon.run.train import run
from moon.score.score import score_run


@pytest.fixture
def root(tmp_path, monkeypatch):
    """cifar10 with near and far sets of a few images each, lists with CRLF, one image set on the other shelf."""
    sizes = {
        ("cifar10", "v1"): {"test_tin": 4, "test_cifar10": 20},
        ("cifar10", "v1.5"): {"test_tin": 3, "test_cifar10": 20},
    }
    monkeypatch.setattr(module, "SIZES", sizes)

    def publish(split, name, count, label=None, shelf="images_classic"):
        lines = []
        for index in range(count):
            path = f"{name}/{split}/{index:04d}.png"
            target = tmp_path / shelf / path
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
    publish("test", "texture", 4, -1, shelf="images_largescale")
    return tmp_path


def test_lists_are_read_as_they_are(root):
    row = benchmark(root, "cifar10-v1.5")
    assert (row.lists, row.known_set, row.validation) == ("v1.5", "cifar10", ("tin",))
    sets = known_sets(root, row)
    assert {split: len(data.labels) for split, data in sets.items()} == {"train": 20, "val": 10, "test": 20}
    assert sets["train"].images.shape == (20, 32, 32, 3)
    assert sets["test"].images[3, 0, 0, 0] == 30
    unknown = open_set(root, "texture", "test", row)
    assert unknown.labels.tolist() == [-1] * 4
    assert has(root, "tin", "test", row)
    assert not has(root, "svhn", "test", row)


def test_the_benchmark_leaves_out_what_is_missing_and_tunes_on_what_is_set_aside(root):
    bench = Bench.open(root, "cifar10-v1.5", tune_on=("tin",))
    assert list(bench.unknown) == ["tin", "texture"]
    assert bench.missing == ("cifar100", "mnist", "svhn", "places365")
    assert len(bench.validation["tin"].labels) == 2
    with pytest.raises(ValueError, match="'cifar10' is the known set"):
        Bench.open(root, "cifar10-v1.5", near=("cifar10",))


def test_images_are_decoded_once(root, monkeypatch):
    row = benchmark(root, "cifar10-v1.5")
    first = open_set(root, "tin", "test", row)
    monkeypatch.setattr(module, "read_list", None)
    again = open_set(root, "tin", "test", row)
    assert np.array_equal(first.images, again.images)
    listed = root / "benchmark_imglist" / "cifar10" / "test_tin.txt"
    listed.write_text(listed.read_text().replace("0000.png", "0001.png"))
    with pytest.raises(TypeError):  # another list is not found in the cache
        open_set(root, "tin", "test", row)


def test_mixed_versions_are_refused(root):
    with pytest.raises(
        DataError, match=r"3 images, which is the list of v1.5; this benchmark is v1 \(4\). Use cifar10-v1.5"
    ):
        Bench.open(root, "cifar10-v1")
    listed = root / "benchmark_imglist" / "cifar10" / "test_cifar10.txt"
    listed.write_text("".join(listed.read_text().splitlines(keepends=True)[:5]))
    with pytest.raises(DataError, match=r"the list of OpenOOD v1.5 has 20. Is it cut off"):
        Bench.open(root, "cifar10-v1.5")


def test_what_a_list_names_must_be_there_and_inside(root):
    row = benchmark(root, "cifar10-v1.5")
    listed = root / "benchmark_imglist" / "cifar10" / "test_texture.txt"
    listed.write_text("nowhere/1.png -1\n")
    with pytest.raises(DataError, match=r"nowhere/1.png is neither under"):
        open_set(root, "texture", "test", row)
    (root / "outside.png").write_bytes(b"")
    listed.write_text("../outside.png -1\n")
    with pytest.raises(DataError, match="leaves the root"):
        open_set(root, "texture", "test", row)
    with pytest.raises(DataError, match="no such list; put OpenOOD's benchmark_imglist under"):
        open_set(root, "svhn", "test", row)


def test_the_sizes_are_openood_s():
    sizes = module.SIZES
    assert sizes["cifar10", "v1"]["test_tin"] == 8793
    # v1.5 sets a thousand and 972 of them aside for validation.
    assert sizes["cifar10", "v1.5"]["test_tin"] + sizes["cifar10", "v1.5"]["val_tin"] == 8793
    assert sizes["cifar100", "v1.5"]["test_tin"] + sizes["cifar100", "v1.5"]["val_tin"] == 7498


@pytest.fixture
def imagenet(tmp_path, monkeypatch):
    """ImageNet in small: three classes of coloured images in a size of their own, streamed from disk."""
    from moon.data import BENCHMARKS

    row = BENCHMARKS["imagenet-v1.5"]
    small = replace(row, num_known=3, size=28, resize=32, net="lenet-norm")
    monkeypatch.setitem(BENCHMARKS, "imagenet-v1.5", small)
    monkeypatch.setattr(module, "SIZES", {("imagenet", "v1.5"): {}})
    chance = np.random.default_rng(0)
    for split, name, count, label in (
        ("train", "imagenet", 24, None), ("val", "imagenet", 6, None), ("test", "imagenet", 12, None),
        ("test", "ninco", 6, -1), ("test", "textures", 6, -1), ("val", "openimage_o", 4, -1),
    ):  # fmt: skip
        lines = []
        for index in range(count):
            path = f"{name}/{split}/{index}.png"
            (tmp_path / "images_largescale" / path).parent.mkdir(parents=True, exist_ok=True)
            pixels = chance.integers(0, 100, (40, 50, 3), dtype=np.uint8)
            pixels[..., index % 3] += 120
            Image.fromarray(pixels).save(tmp_path / "images_largescale" / path)
            lines.append(f"{path} {index % 3 if label is None else label}")
        target = tmp_path / "benchmark_imglist" / "imagenet" / f"{split}_{name}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n".join(lines))
    return tmp_path


def test_a_run_on_images_that_stay_on_disk(imagenet, tmp_path):
    bench = Bench.open(imagenet, "imagenet-v1.5", tune_on=("openimage_o",))
    assert isinstance(bench.known["train"], Listed)
    assert bench.missing == ("ssb_hard", "inaturalist", "openimage_o")
    recipe = build.recipe(bench.row, "moon", options={"quiet_epochs": 1}, epochs=3, batch_size=8, sparsity=0.5)
    result = run(recipe, tmp_path / "run", bench, say=lambda _: None)
    assert result["images"] == {"train": 24, "test": 12, "val": 6}
    scores, _ = score_run(tmp_path / "run", bench, ["msp", "odin", "gen"])
    assert list(scores["detectors"]["msp"]["sets"]) == ["ninco", "textures"]
    assert scores["search"]["gen"]["on"] == {"openimage_o": 4}
    assert run(recipe, tmp_path / "run", bench, say=lambda _: None) == result
    listed = imagenet / "benchmark_imglist" / "imagenet" / "train_imagenet.txt"
    listed.write_text("\n".join(listed.read_text().splitlines()[::-1]))
    with pytest.raises(DataError, match="begun on other images"):
        run(recipe, tmp_path / "run", Bench.open(imagenet, "imagenet-v1.5"), say=lambda _: None)
