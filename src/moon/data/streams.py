"""Images that stay on disk: listed, decoded by worker processes, never all in memory. For sets of ImageNet's scale."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from moon.data.batches import batch_sizes
from moon.data.dataset import DataError
from moon.data.readers import decode
from moon.seeds import derive, generator

Key = tuple[int, int]  # (epoch, or -1 for an image as it is; index)


@dataclass(frozen=True)
class Listed:
    """A data set as a list: where each image is, and its label; -1 for an input of no known class."""

    root: Path
    paths: tuple[str, ...]  # from the root
    labels: NDArray[np.int64]

    def take(self, indices: NDArray) -> Listed:
        """The samples with these indices, or where this mask is true."""
        chosen = np.arange(len(self.paths))[indices]
        return Listed(self.root, tuple(self.paths[i] for i in chosen), self.labels[chosen])

    def digest(self) -> str:
        """The SHA-256 of the list: which images, not their pixels."""
        lines = (f"{path} {label}\n" for path, label in zip(self.paths, self.labels, strict=True))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class Streams:
    """A listed set as (x, y) batches, x normalised to (value / 255 - mean) / std, (B, 3, size, size) float32.

    Iterating gives the images in order, resized to `resize` and cropped at the centre. `epoch(e)` gives them shuffled,
    a random part of each resized and flipped; what happens to an image depends on seed, epoch and its index alone, not
    on the number of workers or processes. Of several processes each decodes its `part` (rank, count) of every batch.
    """

    divided = True  # batches come as this process's part already

    def __init__(
        self,
        listed: Listed,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        size: int = 224,
        resize: int = 256,
        batch_size: int = 128,
        seed: int = 0,
        workers: int = 0,
        part: tuple[int, int] = (0, 1),
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1 or size < 1 or resize < size:
            raise ValueError(
                f"batch_size={batch_size} and size={size} must be at least 1, resize={resize} at least size"
            )
        self.listed, self.size, self.resize, self.seed = listed, size, resize, seed
        self.batch_size, self.workers, self.part, self.device = batch_size, workers, part, torch.device(device)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float32)))[:, None, None].to(device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).float()[:, None, None].to(device)

    @property
    def sizes(self) -> list[int]:
        """Images of each batch, over all processes."""
        return batch_sizes(len(self.listed.paths), self.batch_size)

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.arange(len(self.listed.paths))
        yield from self._batches(-1, np.split(order, np.cumsum(self.sizes)[:-1]))

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one training epoch (counted from 0)."""
        chance = generator("batches", self.seed, epoch)
        order = torch.randperm(len(self.listed.paths), generator=chance).numpy()
        rank, count = self.part
        batches = np.split(order, np.cumsum(self.sizes)[:-1])
        yield from self._batches(epoch, [b if len(b) < 2 * count else b[rank::count] for b in batches])

    def _batches(self, epoch: int, batches: list[NDArray]) -> Iterator[tuple[Tensor, Tensor]]:
        loader = DataLoader(
            _Images(self.listed, self.size, self.resize, self.seed),
            batch_sampler=[[(epoch, int(index)) for index in batch] for batch in batches],
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        for images, labels in loader:
            x = images.to(self.device, non_blocking=True).permute(0, 3, 1, 2)  # channels-last for free
            yield torch.addcmul(self.shift, x.float(), self.scale), labels.to(self.device, non_blocking=True)


class _Images(Dataset):
    """What a worker process does: one image, by its key."""

    def __init__(self, listed: Listed, size: int, resize: int, seed: int) -> None:
        self.listed, self.size, self.resize, self.seed = listed, size, resize, seed

    def __getitem__(self, key: Key) -> tuple[Tensor, int]:
        epoch, index = key
        path = self.listed.root / self.listed.paths[index]
        if epoch < 0:
            image = decode(path, self.resize, path)
            edge = (self.resize - self.size) // 2
            image = image[edge : edge + self.size, edge : edge + self.size]
        else:
            image = random_part(path, self.size, derive("augment", self.seed, epoch, index))
        return torch.from_numpy(image.copy()), int(self.listed.labels[index])


def random_part(path: Path, size: int, seed: int) -> NDArray[np.uint8]:
    """A part of 8 to 100% of the image's area and 3/4 to 4/3 in shape, resized and flipped by chance (Szegedy 2015)."""
    chance = np.random.default_rng(seed)
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except FileNotFoundError:
        raise DataError(f"no such file: {path}") from None
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: cannot be read as an image ({error})") from error
    box = _box(image.width, image.height, chance)
    image = image.resize((size, size), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    return pixels[:, ::-1] if chance.random() < 0.5 else pixels


def _box(width: int, height: int, chance: np.random.Generator) -> tuple[int, int, int, int]:
    for _ in range(10):
        area = width * height * chance.uniform(0.08, 1.0)
        ratio = exp(chance.uniform(log(3 / 4), log(4 / 3)))
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(chance.integers(width - w + 1)), int(chance.integers(height - h + 1))
            return left, top, left + w, top + h
    side = min(width, height)  # of an image too long for any such part, its middle
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side
