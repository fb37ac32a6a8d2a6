"""Batches of a data set that is held on the device; crop and flip are batched tensor operations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from moon.data.augment import Augmentation
from moon.data.dataset import DataSet
from moon.seeds import generator

_PER_GATHER = 16  # batches that are gathered at a time on a GPU, where fewer and larger gathers are faster


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """Divide `count` images into batches; a last batch of one is merged into the previous one (BatchNorm needs two)."""
    full, rest = divmod(count, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if len(sizes) > 1 and sizes[-1] == 1 < batch_size:
        sizes[-2:] = [batch_size + 1]
    return sizes


class Batches:
    """Batches (x, y) of a data set that is held on the device.

    x is (B, C, H, W) float32, normalised to (value / 255 - mean) / std; y is (B,) int64.

    Iterating yields all images in order, without augmentation, for evaluation. `epoch(e)` yields them shuffled, padded
    by `crop` black pixels, cropped at random and, if `flip` is set, flipped with probability 1/2. TrivialAugment comes
    before the crop, Cutout after it. The augmentation of an image depends only on the seed, the epoch and its index,
    not on the device or the batch size.

    Args:
        dataset: The images and labels.
        mean: Mean of the pixels per channel, in [0, 1].
        std: Standard deviation of the pixels per channel.
        batch_size: Images per batch. A last batch of one image is merged into the previous one.
        crop: Width of the black border that training images are cropped from, in pixels; 0 for no cropping.
        flip: Whether to flip training images horizontally with probability 1/2.
        augment: What else is done to training images: "none", "cutout", "trivial" or "trivial+cutout".
        seed: Seed of the order and the augmentation.
        device: Where the images are held.

    Raises:
        ValueError: `batch_size` is below 1, `mean` or `std` does not have one value per channel, or there is no such
            augmentation.

    Example:
        >>> import numpy as np
        >>> from moon import Batches, DataSet
        >>> dataset = DataSet(np.zeros((10, 8, 8, 3), np.uint8), np.arange(10))
        >>> batches = Batches(dataset, (0.5, 0.5, 0.5), (0.2, 0.2, 0.2), batch_size=4, crop=1, flip=True)
        >>> [tuple(x.shape) for x, y in batches]
        [(4, 3, 8, 8), (4, 3, 8, 8), (2, 3, 8, 8)]
        >>> sorted(int(label) for x, y in batches.epoch(0) for label in y)
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(
        self,
        dataset: DataSet,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        batch_size: int = 128,
        crop: int = 0,
        flip: bool = False,
        augment: str = "none",
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if len(mean) != dataset.images.shape[3] or len(std) != len(mean):
            raise ValueError(
                f"mean has {len(mean)} and std {len(std)} value(s), but images have {dataset.images.shape[3]} "
                "channel(s); give one value per channel"
            )
        self.batch_size, self.crop, self.flip, self.seed = batch_size, crop, flip, seed
        self.height, self.width = dataset.images.shape[1:3]
        self.augmentation = Augmentation(augment, self.height, self.width, device)
        # (N, H, W, C): a gathered batch, permuted to (N, C, H, W), is channels-last without a copy.
        self.images = pad(torch.from_numpy(dataset.images), (0, 0, crop, crop, crop, crop)).to(device)
        self.labels = torch.from_numpy(dataset.labels).to(device)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float32))).to(device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).float().to(device)
        self._prefetched: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = {}  # augmentation of the next epoch

    def __len__(self) -> int:
        """Return the number of batches per epoch."""
        return len(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Number of images in each batch."""
        return batch_sizes(len(self.labels), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for x, y in zip(self._uncropped.split(self.sizes), self.labels.split(self.sizes), strict=True):
            yield self._normalise(x), y

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one training epoch.

        Args:
            epoch: The epoch, counted from 0.

        Yields:
            (x, y) per batch.
        """
        device = self.labels.device
        augmentation = self._prefetched.pop(epoch, None) or self._augmentation(epoch)
        order, corner, flipped, numbers = (part.to(device) for part in augmentation)
        per_gather = _PER_GATHER if device.type == "cuda" else 1
        sizes = self.sizes
        starts = range(0, len(sizes), per_gather)
        for group, index in zip(
            (sizes[start : start + per_gather] for start in starts),
            order.split([sum(sizes[start : start + per_gather]) for start in starts]),
            strict=True,
        ):
            x, y = self._gather(index, corner[:, index], flipped[index], numbers[:, index])
            yield from zip(x.split(group), y.split(group), strict=True)
            if device.type == "cuda" and epoch + 1 not in self._prefetched:  # on the host, while the GPU is busy
                self._prefetched = {epoch + 1: self._augmentation(epoch + 1)}

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """Draw random images with replacement, augmented as in `epoch`.

        Random numbers come from torch's default generator of the device, so nothing waits for the device.

        Args:
            count: Number of images.

        Returns:
            (x, y) with `count` images.
        """
        device = self.labels.device
        index = torch.randint(len(self.labels), (count,), device=device)
        corner = torch.randint(2 * self.crop + 1, (2, count), device=device)
        flipped = torch.rand(count, device=device) < (0.5 if self.flip else 0.0)
        return self._gather(index, corner, flipped, self.augmentation.draw_on(device, count))

    @property
    def _uncropped(self) -> Tensor:
        """The images without their border."""
        return self.images[:, self.crop : self.crop + self.height, self.crop : self.crop + self.width]

    def _augmentation(self, epoch: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Draw the order of the images, the corner of each crop, whether each image is flipped, and further numbers."""
        count, rng = len(self.labels), generator("batches", self.seed, epoch)
        return (
            torch.randperm(count, generator=rng),
            torch.randint(2 * self.crop + 1, (2, count), generator=rng),
            torch.rand(count, generator=rng) < (0.5 if self.flip else 0.0),
            self.augmentation.draw(count, self.seed, epoch),
        )

    def _gather(self, index: Tensor, corner: Tensor, flipped: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Gather these images, each cropped at its corner, flipped if `flipped`, and augmented as its numbers say."""
        rows, columns = (torch.arange(size, device=index.device) for size in (self.height, self.width))
        row = corner[0, :, None] + rows
        column = corner[1, :, None] + torch.where(flipped[:, None], columns.flip(0), columns)
        if self.augmentation.trivial:
            x = self.augmentation.change(self._uncropped[index], numbers, row - self.crop, column - self.crop)
        else:
            x = self.images[index[:, None, None], row[:, :, None], column[:, None, :]]
        x = self._normalise(x)
        return (self.augmentation.hide(x, numbers) if self.augmentation.cutout else x), self.labels[index]

    def _normalise(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x.float(), self.scale).permute(0, 3, 1, 2)
