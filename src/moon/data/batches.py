"""Batches that live on the device: the whole set is there once, and crop and flip are batched tensor code."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from moon.data.dataset import DataSet
from moon.seeds import generator


def batch_sizes(count: int, batch_size: int) -> list[int]:
    """How so many images are divided; a last batch of one joins the one before it (BatchNorm needs two)."""
    full, rest = divmod(count, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if len(sizes) > 1 and sizes[-1] == 1 < batch_size:
        sizes[-2:] = [batch_size + 1]
    return sizes


class Batches:
    """A data set as (x, y) batches, x normalised to (value / 255 - mean) / std, (B, C, H, W) float32.

    Iterating gives the images in order and as they are, for evaluation. `epoch(e)` gives them shuffled, cropped from
    a border of `crop` black pixels and flipped; what happens to an image depends on seed, epoch and its index alone,
    not on device or batch size.
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
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, not {batch_size}")
        if len(mean) != dataset.images.shape[3] or len(std) != len(mean):
            raise ValueError(
                f"mean has {len(mean)} and std {len(std)} values for images of {dataset.images.shape[3]} channel(s)"
            )
        self.batch_size, self.crop, self.flip, self.seed = batch_size, crop, flip, seed
        self.height, self.width = dataset.images.shape[1:3]
        # (N, H, W, C): a gathered batch, seen as (N, C, H, W), is channels-last for free.
        self.images = pad(torch.from_numpy(dataset.images), (0, 0, crop, crop, crop, crop)).to(device)
        self.labels = torch.from_numpy(dataset.labels).to(device)
        self.scale = (1 / (255 * torch.tensor(std, dtype=torch.float32))).to(device)
        self.shift = (-torch.tensor(mean) / torch.tensor(std)).float().to(device)
        self._drawn: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # ahead of their epoch

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Images of each batch."""
        return batch_sizes(len(self.labels), self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        crop = self.crop
        images = self.images[:, crop : crop + self.height, crop : crop + self.width]
        for x, y in zip(images.split(self.sizes), self.labels.split(self.sizes), strict=True):
            yield self._normalise(x), y

    def epoch(self, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of one training epoch (counted from 0)."""
        device = self.labels.device
        drawn = self._drawn.pop(epoch, None) or self._draws(epoch)
        order, corner, mirrored = (part.to(device) for part in drawn)
        several = 16 if device.type == "cuda" else 1  # a GPU is asked seldom for much
        sizes = self.sizes
        starts = range(0, len(sizes), several)
        for own, index in zip(
            (sizes[start : start + several] for start in starts),
            order.split([sum(sizes[start : start + several]) for start in starts]),
            strict=True,
        ):
            x, y = self._take(index, corner[:, index], mirrored[index])
            yield from zip(x.split(own), y.split(own), strict=True)
            if device.type == "cuda" and epoch + 1 not in self._drawn:  # while the GPU has enough to do
                self._drawn = {epoch + 1: self._draws(epoch + 1)}

    def _draws(self, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
        """The order of the images, the corner where each is cut out, and whether it is mirrored."""
        count, chance = len(self.labels), generator("batches", self.seed, epoch)
        return (
            torch.randperm(count, generator=chance),
            torch.randint(2 * self.crop + 1, (2, count), generator=chance),
            torch.rand(count, generator=chance) < (0.5 if self.flip else 0.0),
        )

    def draw(self, count: int) -> tuple[Tensor, Tensor]:
        """So many images by chance, cropped and flipped alike. Chance is torch's own; nothing waits for the device."""
        device = self.labels.device
        index = torch.randint(len(self.labels), (count,), device=device)
        corner = torch.randint(2 * self.crop + 1, (2, count), device=device)
        mirrored = torch.rand(count, device=device) < (0.5 if self.flip else 0.0)
        return self._take(index, corner, mirrored)

    def _take(self, index: Tensor, corner: Tensor, mirrored: Tensor) -> tuple[Tensor, Tensor]:
        """These images, each cut out at its corner and mirrored or not."""
        rows, columns = (torch.arange(size, device=index.device) for size in (self.height, self.width))
        row = corner[0, :, None] + rows
        column = corner[1, :, None] + torch.where(mirrored[:, None], columns.flip(0), columns)
        x = self.images[index[:, None, None], row[:, :, None], column[:, None, :]]
        return self._normalise(x), self.labels[index]

    def _normalise(self, x: Tensor) -> Tensor:
        return torch.addcmul(self.shift, x.float(), self.scale).permute(0, 3, 1, 2)
