"""What tests share: small models, evidence from literals, small data sets on disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # kernels run on a CPU, too; read when triton is imported

import numpy as np
import pytest
import torch
from torch import nn

from moon import Evidence


@pytest.fixture(autouse=True)
def fixed_chance():
    torch.manual_seed(0)


@pytest.fixture
def small_net():
    """A function that makes a small net with BatchNorm for 1x8x8 images and 4 known classes."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )

    return make


@pytest.fixture
def evidence():
    """A function that makes random evidence: 3 known classes, and the unknown output if `is_open`."""

    def make(count: int = 40, is_open: bool = True, seed: int = 0) -> Evidence:
        chance = torch.Generator().manual_seed(9)
        weight = torch.eye(4, 8) + 0.3 * torch.randn(4, 8, generator=chance)
        head = weight[: 3 + is_open], 0.1 * torch.randn(4, generator=chance)[: 3 + is_open]
        chance = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (count,), generator=chance)
        features = (torch.randn(count, 8, generator=chance) + 2 * torch.eye(3, 8)[labels]).relu()
        return Evidence(features @ head[0].T + head[1], features, 3, labels, head)

    return make


@pytest.fixture
def data_root(tmp_path) -> Path:
    """A data root whose 'mnist' is easy to learn, and whose unknown sets are noise of other kinds."""
    chance = np.random.default_rng(0)
    root = tmp_path / "data"

    def write(name: str, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        (root / name).mkdir(parents=True, exist_ok=True)
        np.savez(root / name / f"{split}.npz", images=images.astype(np.uint8), labels=labels)

    for split, count in (("train", 256), ("test", 100)):
        labels = np.arange(count) % 10
        images = chance.integers(0, 120, (count, 28, 28, 1))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 8, 4:24] += 130
        write("mnist", split, images, labels)
    write("notmnist", "test", chance.integers(0, 256, (30, 28, 28, 1)), np.arange(30) % 10)
    write("fashionmnist", "test", chance.integers(0, 256, (30, 28, 28, 1)), np.arange(30) % 10)
    write("dtd", "test", chance.integers(0, 256, (30, 32, 32, 3)), np.zeros(30, int))
    return root
