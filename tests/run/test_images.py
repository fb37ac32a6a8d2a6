from dataclasses import replace

import numpy as np
import pytest
import torch

from moon import DataError, lenet
from moon.data import DataSet, load, save
from moon.run.images import BenchmarkImages


def test_images_are_converted_to_the_size_of_the_benchmark(data_root):
    images = BenchmarkImages.open(data_root, "mnist")
    assert images.missing == ("cifar10", "tin", "places")
    assert list(images.unknown) == ["notmnist", "fashionmnist", "dtd"]
    assert images.unknown["dtd"].images.shape == (30, 28, 28, 1)


def test_logits_are_float64_so_that_confidences_do_not_tie(data_root):
    images = BenchmarkImages.open(data_root, "mnist")
    evidence = images.evidence(lenet(), images.splits["val"])
    assert evidence.logits.dtype == torch.float64
    assert len(evidence) == 10


def test_mirrored_evaluation_needs_training_with_mirrored_images(data_root):
    images = BenchmarkImages.open(data_root, "mnist")
    images = replace(images, benchmark=replace(images.benchmark, flip=False))
    with pytest.raises(ValueError, match="mnist are not trained with mirrored images"):
        images.evidence(lenet(), images.splits["val"], mirrored=True)


def test_the_fingerprint_depends_on_images_and_labels(data_root):
    first = BenchmarkImages.open(data_root, "mnist").fingerprint()
    assert first == BenchmarkImages.open(data_root, "mnist").fingerprint()
    path = data_root / "mnist" / "test.npz"
    with np.load(path) as file:
        np.savez(path, images=file["images"], labels=file["labels"][::-1].copy())
    second = BenchmarkImages.open(data_root, "mnist").fingerprint()
    assert second["train"] == first["train"]
    assert second["test"]["labels_sha256"] != first["test"]["labels_sha256"]


def test_unknown_sets_with_known_images_are_reported(data_root, caplog):
    known = load(data_root, "mnist", "train")
    noise = np.random.default_rng(1).integers(0, 256, (30, 28, 28, 1), np.uint8)
    mixed = DataSet(np.concatenate([known.images[:3], noise]), np.zeros(33, int))
    save(mixed, data_root, "mixed", "test")
    save(known, data_root, "copy", "test")
    for role in ("near", "outliers", "tune_on"):
        caplog.clear()
        BenchmarkImages.open(data_root, "mnist", **{role: "mixed"})
        (message,) = [each for each in caplog.messages if "known set" in each]
        assert message.startswith("mixed: 3 of 33 images are images of the known set mnist")
        with pytest.raises(DataError, match=r"copy: all \d+ images are images of the known set mnist; name another"):
            BenchmarkImages.open(data_root, "mnist", **{role: "copy"})


@pytest.mark.slow
def test_outliers_are_numbered_from_zero_and_not_scored(data_root):
    images = BenchmarkImages.open(data_root, "mnist", outliers="notmnist")
    assert "notmnist" not in images.unknown
    assert sorted(set(images.outliers.labels)) == list(range(10))
    assert images.fingerprint()["outliers"]["images"] == [30, 28, 28, 1]
    assert "outliers" not in BenchmarkImages.open(data_root, "mnist").fingerprint()
    without_labels = BenchmarkImages.open(data_root, "digits", outliers="photos")
    assert set(without_labels.outliers.labels) == {0}
    with pytest.raises(ValueError, match="'dtd' is used for training or tuning"):
        BenchmarkImages.open(data_root, "mnist", far=("dtd",), outliers="dtd")


def test_the_train_split_of_outliers_is_preferred(data_root):
    np.savez(data_root / "notmnist" / "train.npz", images=np.zeros((5, 28, 28, 1), np.uint8), labels=np.arange(5))
    assert len(BenchmarkImages.open(data_root, "mnist", outliers="notmnist").outliers.labels) == 5


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"near": ("mnist",)}, "'mnist' is the known set"),
        ({"tune_on": ("mnist",)}, "'mnist' is the known set"),
        ({"outliers": "mnist"}, "'mnist' is the known set"),
        ({"outliers": "notmnist", "tune_on": ("notmnist",)}, "'notmnist' is used for training or tuning"),
        ({"near": ("notmnist",), "far": ("notmnist",)}, "named more than once as near or far"),
    ],
)
def test_a_set_can_have_only_one_role(data_root, arguments, what):
    with pytest.raises(ValueError, match=what):
        BenchmarkImages.open(data_root, "mnist", **arguments)


def test_known_images_of_another_size_are_rejected_unless_the_benchmark_resizes_them(data_root, caplog):
    caplog.set_level("INFO", "moon")
    for split, size in (("train", 28), ("test", 32)):
        images, labels = np.zeros((100, size, size, 1), np.uint8), np.arange(100) % 10
        (data_root / "mine").mkdir(exist_ok=True)
        np.savez(data_root / "mine" / f"{split}.npz", images=images, labels=labels)
    what = (
        r"mine/test: images are 32x32x1, but the known images of mine are 28x28x1; import them again \(`moon data "
        r"import` with --size 28x28 --grey\), or declare a benchmark with resize_known = true in .*benchmarks.toml"
    )
    with pytest.raises(DataError, match=what):
        BenchmarkImages.open(data_root, "mine")
    (data_root / "benchmarks.toml").write_text("[mine]\nresize_known = true\nfar = ['fashionmnist']")
    images = BenchmarkImages.open(data_root, "mine")
    assert images.splits["test"].images.shape == (90, 28, 28, 1)
    assert caplog.messages == ["resized to 28x28x1: mine/test 32x32x1, mine/val 32x32x1"]


def test_the_fingerprint_holds_what_a_network_needs_to_be_built(data_root):
    images = BenchmarkImages.open(data_root, "mnist")
    assert images.fingerprint()["known"] == {"num_known": 10, "channels": 1, "size": 28, "classes": []}
    digits = BenchmarkImages.open("nowhere", "digits").fingerprint()["known"]
    assert digits["classes"] == list("0123456789")


def test_unknown_sets_are_given_as_one_name_or_several(data_root):
    for near in ("notmnist", ["notmnist"], ("notmnist",)):
        opened = BenchmarkImages.open(data_root, "mnist", near=near)
        assert opened.benchmark.near == ("notmnist",)
        assert list(opened.unknown) == ["notmnist", "dtd"]
    assert list(BenchmarkImages.open(data_root, "mnist", far="fashionmnist", near=["dtd"]).unknown) == [
        "dtd", "fashionmnist"
    ]  # fmt: skip
    assert list(BenchmarkImages.open(data_root, "mnist", tune_on="notmnist").tuning) == ["notmnist"]
