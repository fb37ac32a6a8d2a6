"""Stronger augmentation of training images, on whole batches: Cutout and TrivialAugment.

TrivialAugment (Müller & Hutter 2021) applies one operation to each image. The operation is drawn uniformly, and so is
its strength, among 31 levels from the weakest to the strongest of its range (the paper's wide space). Values and pixels
are computed as Pillow does, which the authors use: from 8 bits to 8 bits, with the nearest pixel for geometry.

Cutout (DeVries & Taylor 2017) hides a square, half as long as the image, with the mean colour. Its centre is a random
pixel, so that a part of the square may lie outside the image.
"""

from __future__ import annotations

from functools import cache
from math import cos, prod, radians, sin

import torch
from torch import Tensor

from moon.data.benchmarks import AUGMENTATIONS
from moon.seeds import generator
from moon.suggest import did_you_mean

_AT_ONCE = 1 << 24  # values that TrivialAugment changes at a time; it needs dozens of bytes for each
_LEVELS = 31
_RANGES: dict[str, tuple[float, float]] = {  # the weakest and the strongest
    "identity": (0, 0),
    "autocontrast": (0, 0),
    "equalize": (0, 0),
    "posterize": (8, 2),  # bits that are kept
    "solarize": (256, 0),  # values from this one on are inverted
    "brightness": (0.01, 2.0),  # 1 is the image, 0 black
    "contrast": (0.01, 2.0),  # 0 is its mean grey
    "color": (0.01, 2.0),  # 0 is the image in grey
    "sharpness": (0.01, 2.0),  # 0 is a smoothed image
    "rotate": (0, 135),  # degrees, in either direction as all of the following
    "shear_x": (0, 0.99),
    "shear_y": (0, 0.99),
    "translate_x": (0, 32),  # pixels, at most the side of the image
    "translate_y": (0, 32),
}
_OPERATIONS = tuple(_RANGES)
_SIGNED = _OPERATIONS[_OPERATIONS.index("rotate") :]
_CHOICES = len(_OPERATIONS) * _LEVELS * 2  # an operation, a level and a direction


class Augmentation:
    """An augmentation besides crop and flip.

    All random numbers of an image are three integers: a choice (operation, level and direction of TrivialAugment) and
    the row and the column of Cutout's centre. Nothing waits for the device.

    Args:
        name: One of "none", "cutout", "trivial" and "trivial+cutout".
        height: Height of the images.
        width: Width of the images.
        device: Where the images are.

    Raises:
        ValueError: There is no such augmentation.

    Example:
        >>> import torch
        >>> from moon.data.augment import Augmentation
        >>> augmentation = Augmentation("trivial", 8, 8)
        >>> x = torch.randint(256, (4, 8, 8, 3), dtype=torch.uint8)
        >>> augmentation.change(x, augmentation.draw(4, seed=0, epoch=0)).shape
        torch.Size([4, 8, 8, 3])
    """

    def __init__(self, name: str, height: int, width: int, device: torch.device | str = "cpu") -> None:
        if name not in AUGMENTATIONS:
            choices = ", ".join(AUGMENTATIONS)
            raise ValueError(
                f"unknown augmentation '{name}'{did_you_mean(name, AUGMENTATIONS)}; choose from: {choices}"
            )
        self.trivial, self.cutout = "trivial" in name, "cutout" in name
        self.height, self.width = height, width
        if self.trivial:
            amounts, matrices = _strengths(height, width)
            self.amounts, self.matrices = amounts.to(device), matrices.to(device)

    def draw(self, count: int, seed: int, epoch: int) -> Tensor:
        """Draw the numbers of all images of an epoch: (3, count) on the CPU, or (0, count) without an augmentation."""
        if not (self.trivial or self.cutout):
            return torch.empty(0, count, dtype=torch.int64)
        rng = generator("augmentation", seed, epoch)
        return torch.stack([torch.randint(high, (count,), generator=rng) for high in self._highs])

    def draw_on(self, device: torch.device, count: int) -> Tensor:
        """Like `draw`, but on the device and with torch's default generator there."""
        if not (self.trivial or self.cutout):
            return torch.empty(0, count, dtype=torch.int64, device=device)
        return torch.stack([torch.randint(high, (count,), device=device) for high in self._highs])

    @property
    def _highs(self) -> tuple[int, int, int]:
        return _CHOICES, self.height, self.width

    def change(self, x: Tensor, numbers: Tensor, row: Tensor | None = None, column: Tensor | None = None) -> Tensor:
        """Apply TrivialAugment to images (N, H, W, C) of uint8 with 1 or 3 channels, given what was drawn for them.

        `row` (N, H) and `column` (N, W) say which pixels of the changed images are wanted, by default all; those
        outside are black. A part of the batch is changed at a time, so that a large batch needs little more memory than
        a small one.
        """
        choice = numbers[0]
        if row is None or column is None:
            row, column = (torch.arange(size, device=x.device)[None] for size in (self.height, self.width))
        count, *shape = x.shape
        size = max(1, _AT_ONCE // prod(shape))
        values = x, choice, row.expand(count, -1), column.expand(count, -1)
        parts = [self._change(*part) for part in zip(*(value.split(size) for value in values), strict=True)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _change(self, x: Tensor, choice: Tensor, row: Tensor, column: Tensor) -> Tensor:
        x = recolour(x, choice // (2 * _LEVELS), self.amounts[choice])
        return resample(x, self.matrices[choice], row, column)

    def hide(self, x: Tensor, numbers: Tensor) -> Tensor:
        """Apply Cutout in place to normalised images (N, C, H, W): a square becomes zero, the mean colour."""
        side = min(self.height, self.width) // 2
        rows, columns = (
            (offset >= 0) & (offset < side)
            for offset in (
                torch.arange(size, device=x.device) - centre[:, None] + side // 2
                for size, centre in zip((self.height, self.width), numbers[1:], strict=True)
            )
        )
        return x.masked_fill_((rows[:, :, None] & columns[:, None, :])[:, None], 0.0)


@cache
def _strengths(height: int, width: int) -> tuple[Tensor, Tensor]:
    """The amount (float32) and the affine map (2, 3) of each choice, computed once in double precision."""
    amounts, matrices = [], []
    for choice in range(_CHOICES):
        name, level, direction = _OPERATIONS[choice // (2 * _LEVELS)], choice // 2 % _LEVELS, choice % 2
        weakest, strongest = _RANGES[name]
        if name.startswith("translate"):
            strongest = min(strongest, width if name == "translate_x" else height)
        amount = weakest + (strongest - weakest) * level / (_LEVELS - 1)
        amounts.append(-amount if name in _SIGNED and direction else amount)
        matrices.append(_affine(name, amounts[-1], height, width))
    made = (torch.tensor(numbers, dtype=torch.float32, device="cpu") for numbers in (amounts, matrices))
    return next(made), next(made)


def _affine(name: str, amount: float, height: int, width: int) -> list[list[float]]:
    """The map from (column, row, 1) of a pixel to the column and the row that it is taken from."""
    if name == "rotate":  # around the centre
        c, s, x, y = cos(radians(amount)), sin(radians(amount)), width / 2, height / 2
        return [[c, -s, x - c * x + s * y], [s, c, y - s * x - c * y]]
    by = {key: amount * (key == name) for key in ("shear_x", "shear_y", "translate_x", "translate_y")}
    return [[1.0, by["shear_x"], by["translate_x"]], [by["shear_y"], 1.0, by["translate_y"]]]


def recolour(x: Tensor, operation: Tensor, amount: Tensor) -> Tensor:
    """Apply to each image (N, H, W, C) of uint8 its operation on colours; geometric ones leave it as it is."""
    count, height, width, channels = x.shape
    index = x.reshape(count, height * width, channels).long()  # gathering needs int64; int32 is faster otherwise
    pixels = index.int()
    grey, amount = _grey(pixels), amount[:, None, None]
    value = torch.arange(256, dtype=torch.int32, device=x.device)[None, :, None]
    smallest, largest = pixels.amin(1, keepdim=True), pixels.amax(1, keepdim=True)
    dropped = (8 - amount).round().clamp(0, 8).int()  # bits; amounts of other operations are not
    mean = (2 * grey.sum(1, keepdim=True) + height * width) // (2 * height * width)

    tables = {  # what becomes of each value, (N, 256, C)
        "autocontrast": ((value - smallest).clamp(min=0) * 255 // (largest - smallest).clamp(min=1)).clamp(max=255),
        "equalize": _equalized(index, value, largest),
        "posterize": value >> dropped << dropped,
        "solarize": torch.where(value < amount, value, 255 - value),
        "brightness": _blend(0, value, amount),
        "contrast": _blend(mean, value, amount),
    }
    # An image of one value has no contrast to stretch.
    tables["autocontrast"] = torch.where(largest > smallest, tables["autocontrast"], value)

    def chosen(name: str, changed: Tensor, otherwise: Tensor) -> Tensor:
        return torch.where((operation == _OPERATIONS.index(name))[:, None, None], changed, otherwise)

    table = value
    for name, changed in tables.items():
        table = chosen(name, changed, table)
    smooth = _smooth(pixels.view(count, height, width, channels)).view_as(pixels)
    out = table.expand(count, 256, channels).gather(1, index)
    out = chosen("color", _blend(grey, pixels, amount), out)
    out = chosen("sharpness", _blend(smooth, pixels, amount), out)
    return out.to(torch.uint8).view_as(x)


def _blend(image: Tensor | int, other: Tensor, share: Tensor) -> Tensor:
    """`image` for a share of 0, `other` for 1; beyond them for others."""
    return (image + share * (other - image)).clamp(0, 255).int()


def _grey(pixels: Tensor) -> Tensor:
    """Luminance (ITU-R 601-2) of pixels (N, P, C) as (N, P, 1)."""
    if pixels.shape[2] == 1:
        return pixels
    red, green, blue = pixels.split(1, dim=2)
    return (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16


def _equalized(index: Tensor, value: Tensor, largest: Tensor) -> Tensor:
    """What becomes of each value if all are to be equally frequent, (N, 256, C)."""
    count, total, channels = index.shape
    histogram = torch.zeros(count, 256, channels, dtype=torch.int32, device=index.device)
    histogram.scatter_add_(1, index, torch.ones_like(value[:, :1]).expand_as(index))  # of integers: any order is exact
    step = (total - histogram.gather(1, largest.long())) // 255
    below = histogram.cumsum(1, dtype=torch.int32) - histogram
    equalized = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, equalized, value)


def _smooth(image: Tensor) -> Tensor:
    """Each pixel (5/13) with its eight neighbours (1/13 each), rounded; those at the edge stay as they are."""
    rows = image[:, :-2] + image[:, 1:-1] + image[:, 2:]
    around = rows[:, :, :-2] + rows[:, :, 1:-1] + rows[:, :, 2:] + 4 * image[:, 1:-1, 1:-1]
    smooth = image.clone()
    smooth[:, 1:-1, 1:-1] = (2 * around + 13) // 26
    return smooth


def resample(x: Tensor, matrix: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Take pixels of images (N, H, W, C) from where an affine map leads; black where that is outside.

    The map (2, 3) of each image leads from (column, row, 1) of the result to column and row in `x`. Rows and columns of
    the result are those before the crop, (N, H) or (1, H) and (N, W) or (1, W); those outside the image are black.
    """
    count, height, width, channels = x.shape
    across, down = (column.float() + 0.5)[:, None, :], (row.float() + 0.5)[:, :, None]  # the centres of the pixels
    inside = ((row >= 0) & (row < height))[:, :, None] & ((column >= 0) & (column < width))[:, None, :]
    places = []
    for line, size in zip(matrix.unbind(1), (width, height), strict=True):
        a, b, c = (number[:, None, None] for number in line.unbind(1))
        place = (a * across + (b * down + c)).floor()
        inside = inside & (place >= 0) & (place < size)
        places.append(place)
    index = torch.where(inside, places[1].long() * width + places[0].long(), 0).view(count, height * width, 1)
    found = x.view(count, height * width, channels).gather(1, index.expand(-1, -1, channels))
    return (found * inside.view(count, height * width, 1)).view(x.shape)
