"""Batches of images that stay on disk, decoded by worker processes: for sets of ImageNet's size."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import exp, log, sqrt
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from moon.data.augment import Augmentation
from moon.data.batches import batch_sizes
from moon.data.benchmarks import Size, sides
from moon.data.class_names import described
from moon.data.decoding import decode_rgb
from moon.data.image_files import decode_image
from moon.seeds import derive, generator
from moon.suggest import counted

_log = logging.getLogger(__name__)

_transparent: set[Path] = set()  # folders that a warning about transparent images was logged for
_EVALUATION = -1  # used as the epoch for images that are not augmented


@dataclass(frozen=True, repr=False)
class ImageList:
    """A data set as a list of image files, which stay on disk.

    Args:
        root: The folder that the paths are relative to.
        paths: The path of each image.
        labels: Array (N,) of int64; -1 for an image of no known class.
        classes: The name of each class, by label; empty if the classes have no names.
        upright: Whether images are rotated as their EXIF orientation says.

    Example:
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from moon.data import ImageList
        >>> images = ImageList(Path("images"), ("cat/1.png", "dog/1.png", "dog/2.png"), np.array([0, 1, 1]))
        >>> images.take(images.labels == 1).paths
        ('dog/1.png', 'dog/2.png')
    """

    root: Path
    paths: tuple[str, ...]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    upright: bool = False

    def __repr__(self) -> str:
        count = counted(len(self.paths), "image")
        return f"ImageList({count} in {self.root}, {described(self.labels, self.classes)})"

    def take(self, indices: NDArray) -> ImageList:
        """Select samples.

        Args:
            indices: Integer indices, or a boolean mask (N,).

        Returns:
            The selected samples.
        """
        chosen = np.arange(len(self.paths))[indices]
        return replace(self, paths=tuple(self.paths[i] for i in chosen), labels=self.labels[chosen])

    def digest(self) -> str:
        """Return the SHA-256 of the list (paths and labels, not pixels) as hexadecimal digits."""
        lines = (f"{path} {label}\n" for path, label in zip(self.paths, self.labels, strict=True))
        return hashlib.sha256("".join(lines).encode()).hexdigest()


class StreamedBatches:
    """Batches (x, y) of images that are read from disk as they are needed.

    x is (B, 3, height, width) float32, normalised to (value / 255 - mean) / std; y is (B,) int64.

    Iterating yields all images in order: they are resized to cover `size`, the shorter side to `resize` or more, and
    the centre is used. `epoch(e)` yields them shuffled, with a random resized crop and flip, then TrivialAugment and
    Cutout. The augmentation of an image depends only on the seed, the epoch and its index, not on the number of workers
    or processes.

    Args:
        images: The list of images.
        mean: Mean of the pixels per channel, in [0, 1].
        std: Standard deviation of the pixels per channel.
        size: Height and width of the images in a batch, one number if they are square.
        resize: Least length of the shorter side before the centre crop, at least that of `size`.
        batch_size: Images per batch, over all processes. A last batch of one image is merged into the previous one.
        seed: Seed of the order and the augmentation.
        augment: What is done besides crop and flip: "none", "cutout", "trivial" or "trivial+cutout".
        workers: Number of worker processes that decode images; 0 decodes in this process.
        part: (rank, count) of this process: `epoch` yields only its part of each batch.
        device: Where the batches are needed.

    Raises:
        ValueError: `batch_size` or `size` is below 1, `resize` is below `size`, or there is no such augmentation.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import numpy as np
        >>> from PIL import Image
        >>> from moon.data import ImageList, StreamedBatches
        >>> with tempfile.TemporaryDirectory() as root:
        ...     Image.new("RGB", (40, 30)).save(f"{root}/a.png")
        ...     images = ImageList(Path(root), ("a.png",), np.array([3]))
        ...     batches = StreamedBatches(images, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), size=16, resize=20)
        ...     [(tuple(x.shape), y.tolist()) for x, y in batches.epoch(0)]
        [((1, 3, 16, 16), [3])]
    """

    divided = True  # `epoch` yields this process's part of each batch, not all of it

    def __init__(
        self,
        images: ImageList,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        size: Size = 224,
        resize: int = 256,
        batch_size: int = 128,
        seed: int = 0,
        augment: str = "none",
        workers: int = 0,
        part: tuple[int, int] = (0, 1),
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1 or min(sides(size)) < 1 or resize < min(sides(size)):
            raise ValueError(
                f"batch_size={batch_size} and size={size} must be at least 1, resize={resize} at least size"
            )
        self.images, self.size, self.resize, self.seed = images, size, resize, seed
        self.augmentation = Augmentation(augment, *sides(size), device)
        self.batch_size, self.workers, self.part, self.device = batch_size, workers, part, torch.device(device)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float32)))[:, None, None].to(device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).float()[:, None, None].to(device)

    @property
    def sizes(self) -> list[int]:
        """Number of images in each batch, over all processes."""
        return batch_sizes(len(self.images.paths), self.batch_size)

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.sizes)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = np.arange(len(self.images.paths))
        yield from self._load(_EVALUATION, np.split(order, np.cumsum(self.sizes)[:-1]))

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield this process's part of the batches of one training epoch.

        A batch with fewer than two images per process is not divided.

        Args:
            epoch: The epoch, counted from 0.

        Yields:
            (x, y) per batch.
        """
        rng = generator("batches", self.seed, epoch)
        order = torch.randperm(len(self.images.paths), generator=rng).numpy()
        rank, count = self.part
        batches = np.split(order, np.cumsum(self.sizes)[:-1])
        yield from self._load(epoch, [b if len(b) < 2 * count else b[rank::count] for b in batches])

    def _load(self, epoch: int, batches: list[NDArray]) -> Iterator[tuple[Tensor, Tensor]]:
        """Decode and normalise batches, given as indices of images."""
        loader = DataLoader(
            _Images(self.images, self.size, self.resize, self.seed),
            batch_sampler=[[(epoch, int(index)) for index in batch] for batch in batches],
            num_workers=self.workers,
            pin_memory=self.device.type == "cuda",
        )
        augmentation = Augmentation("none", *sides(self.size)) if epoch == _EVALUATION else self.augmentation
        numbers = augmentation.draw(len(self.images.paths), self.seed, epoch)
        for batch, (images, labels, transparent) in zip(batches, loader, strict=True):
            if transparent.any():
                self._say_transparent(batch[int(transparent.int().argmax())])
            x, drawn = images.to(self.device, non_blocking=True), numbers[:, batch].to(self.device)
            x = augmentation.change(x, drawn) if augmentation.trivial else x
            x = x.permute(0, 3, 1, 2)  # channels-last without a copy
            x = torch.addcmul(self.shift, x.float(), self.scale)
            x = augmentation.hide(x, drawn) if augmentation.cutout else x
            yield x, labels.to(self.device, non_blocking=True)

    def _say_transparent(self, index: int) -> None:
        """Log once for each folder that images were put on white; worker processes would each log it."""
        if self.images.root not in _transparent:
            _transparent.add(self.images.root)
            path = self.images.paths[index]
            _log.warning("%s: %s is partly transparent; such images are shown on white", self.images.root, path)


class _Images(Dataset):
    """Images by (epoch, index), as a worker process decodes them."""

    def __init__(self, images: ImageList, size: Size, resize: int, seed: int) -> None:
        self.images, self.size, self.resize, self.seed = images, size, resize, seed

    def __getitem__(self, key: tuple[int, int]) -> tuple[Tensor, int, bool]:
        epoch, index = key
        path = self.images.root / self.images.paths[index]
        if epoch == _EVALUATION:
            prepared = decode_image(path, self.size, path, self.images.upright, shorter_side=self.resize)
            image, is_transparent = prepared.pixels, prepared.is_transparent
        else:
            seed = derive("augment", self.seed, epoch, index)
            image, is_transparent = random_resized_crop(path, self.size, seed, self.images.upright)
        return torch.from_numpy(image.copy()), int(self.images.labels[index]), is_transparent


def random_resized_crop(path: Path, size: Size, seed: int, upright: bool = False) -> tuple[NDArray[np.uint8], bool]:
    """Decode a random part of an image (Szegedy et al. 2015), resized and flipped with probability 1/2.

    Args:
        path: The image.
        size: Height and width of the result, one number if it is square.
        seed: Seed of the crop and the flip.
        upright: Whether to rotate the image as its EXIF orientation says.

    Returns:
        Array (height, width, 3): 8 to 100% of the image's area, stretched by 3/4 to 4/3; and whether parts of
        the image were transparent, which are now white.

    Raises:
        DataError: The image is missing, damaged or too large, or has more than 8 bits per channel.
    """
    from PIL import Image

    rng = np.random.default_rng(seed)
    image, is_transparent, _ = decode_rgb(path, path, upright=upright)
    rows, columns = sides(size)
    box = _random_box(image.width, image.height, rng, columns / rows)
    image = image.resize((columns, rows), Image.Resampling.BILINEAR, box)
    pixels = np.asarray(image)
    return (pixels[:, ::-1] if rng.random() < 0.5 else pixels), is_transparent


def _random_box(width: int, height: int, rng: np.random.Generator, shape: float = 1.0) -> tuple[int, int, int, int]:
    """Draw the (left, top, right, bottom) of a crop; the largest in the centre if ten draws do not fit into the image.

    `shape` is the width of the result, divided by its height.
    """
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = shape * exp(rng.uniform(log(3 / 4), log(4 / 3)))
        w, h = round(sqrt(area * ratio)), round(sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(rng.integers(width - w + 1)), int(rng.integers(height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, max(1, round(height * shape))), min(height, max(1, round(width / shape)))
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h
