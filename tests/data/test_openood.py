"""OpenOOD's layout in small: lists and images made here, sizes of the lists made small."""

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, benchmark, has, known_sets, open_set
from moon.data import openood as module
from moon.experiments.bench import Bench


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
    listed.write_text(listed.read_text()[:60])
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
