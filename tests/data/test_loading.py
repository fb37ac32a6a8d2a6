"""Sets become batches with the preparation of their benchmark."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from moon.data import (
    BENCHMARKS,
    Batches,
    DataSet,
    ImageList,
    StreamedBatches,
    evaluation_batches,
    loading,
    training_batches,
)

MNIST = BENCHMARKS["mnist"]
IMAGENET = replace(BENCHMARKS["imagenet-v1.5"], size=16, resize=20)


@pytest.fixture
def dataset():
    pixels = np.random.default_rng(0).integers(0, 256, (10, 28, 28, 1)).astype(np.uint8)
    return DataSet(pixels, np.arange(10))


@pytest.fixture
def images(tmp_path):
    rng = np.random.default_rng(0)
    for index in range(6):
        Image.fromarray(rng.integers(0, 256, (24, 30, 3), dtype=np.uint8)).save(tmp_path / f"{index}.png")
    return ImageList(tmp_path, tuple(f"{index}.png" for index in range(6)), np.arange(6))


def assert_same(batches, expected):
    for (x, y), (expected_x, expected_y) in zip(batches, expected, strict=True):
        assert torch.equal(x, expected_x)
        assert torch.equal(y, expected_y)


def test_evaluation_of_a_set_in_memory(dataset):
    batches = evaluation_batches(dataset, MNIST, "cpu", batch_size=4)
    assert_same(batches, Batches(dataset, MNIST.mean, MNIST.std, batch_size=4))
    assert evaluation_batches(dataset, MNIST, "cpu").batch_size == 500


def test_training_on_a_set_in_memory(dataset):
    batches = training_batches(dataset, MNIST, "cpu", batch_size=4, seed=3)
    expected = Batches(dataset, MNIST.mean, MNIST.std, batch_size=4, crop=4, flip=True, seed=3)
    assert_same(batches.epoch(1), expected.epoch(1))
    digits = training_batches(dataset, BENCHMARKS["digits"], "cpu", batch_size=4, seed=3)
    assert (digits.crop, digits.flip) == (2, False)


def test_evaluation_of_images_on_disk(images):
    batches = evaluation_batches(images, IMAGENET, "cpu", batch_size=4)
    assert_same(batches, StreamedBatches(images, IMAGENET.mean, IMAGENET.std, size=16, resize=20, batch_size=4))
    assert evaluation_batches(images, IMAGENET, "cpu").batch_size == 256


def test_training_on_images_on_disk(images):
    batches = training_batches(images, IMAGENET, "cpu", batch_size=4, seed=3, part=(1, 2))
    settings = {"size": 16, "resize": 20, "batch_size": 4, "seed": 3, "part": (1, 2)}
    assert_same(batches.epoch(1), StreamedBatches(images, IMAGENET.mean, IMAGENET.std, **settings).epoch(1))


def test_worker_processes_decode_long_lists(images, monkeypatch):
    monkeypatch.setattr(loading.os, "cpu_count", lambda: 64)
    assert evaluation_batches(images, IMAGENET, "cpu").workers == 0
    long = ImageList(images.root, images.paths * 400, np.tile(images.labels, 400))
    assert evaluation_batches(long, IMAGENET, "cpu").workers == 8
    assert training_batches(long, IMAGENET, "cpu", batch_size=4, seed=0).workers == 8
    monkeypatch.setattr(loading.os, "cpu_count", lambda: 2)
    assert evaluation_batches(long, IMAGENET, "cpu").workers == 2
