"""Probes: generated images of no class, to measure what a packed network does with images unlike the known ones.

They are never used for training, or for choosing or fitting a detector.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from moon.seeds import derive

PROBES = 100  # images of each family


def make_probes(shape: tuple[int, int, int], known: NDArray[np.uint8]) -> dict[str, NDArray[np.uint8]]:
    """Make images of each family, (N, H, W, C); the same ones in every call.

    They depend on the shape only, except for `shuffled`: the pixels of known images in random places.

    Args:
        shape: Channels, rows and columns.
        known: Images of the known classes in this size.

    Returns:
        The images by the name of their family.
    """
    rng = np.random.default_rng(derive("probes shuffled"))
    chosen = known[np.resize(rng.permutation(len(known)), PROBES)]
    flat = chosen.reshape(PROBES, -1, shape[0])
    return _drawn(shape) | {"shuffled": np.stack([rng.permutation(image) for image in flat]).reshape(chosen.shape)}


@lru_cache(maxsize=1)
def _drawn(shape: tuple[int, int, int]) -> dict[str, NDArray[np.uint8]]:
    """The families that depend on the shape only."""
    channels, rows, columns = shape
    y, x = np.mgrid[:rows, :columns] / min(rows, columns)  # the shorter side has the length 1
    canvas, found = _Canvas(y, x, channels), {}
    for name, draw in _FAMILIES.items():
        rng = np.random.default_rng(derive(f"probes {name}"))
        found[name] = np.stack([_pixels(draw(rng, canvas)) for _ in range(PROBES)])
    return found


class _Canvas(NamedTuple):
    """The place of each pixel, (H, W), and the number of channels."""

    y: NDArray
    x: NDArray
    channels: int

    def box(self, low: NDArray, high: NDArray) -> tuple[slice, slice]:
        """The pixels between two corners."""
        first, last = (np.ceil(corner * min(self.y.shape)).clip(0).astype(int) for corner in (low, high))
        return slice(first[0], last[0]), slice(first[1], last[1])


def _noise(rng: Generator, canvas: _Canvas) -> NDArray:
    """Uniform noise."""
    return rng.random((*canvas.y.shape, canvas.channels))


def _clouds(rng: Generator, canvas: _Canvas) -> NDArray:
    """Noise whose amplitude falls with the frequency, as that of natural images does."""
    rows, columns = canvas.y.shape
    frequency = np.hypot(np.fft.fftfreq(rows)[:, None], np.fft.rfftfreq(columns))
    frequency[0, 0] = 1
    white = np.fft.rfft2(rng.normal(size=(canvas.channels, rows, columns)))
    field = np.fft.irfft2(white / frequency ** rng.uniform(0.8, 1.5), (rows, columns)).transpose(1, 2, 0)
    field = field @ rng.normal(size=(canvas.channels, canvas.channels))  # channels of an image are correlated
    return _colour(rng, canvas) + rng.uniform(0.1, 0.3) * (field - field.mean()) / field.std()


def _plain(rng: Generator, canvas: _Canvas) -> NDArray:
    """One colour."""
    return np.broadcast_to(_colour(rng, canvas), (*canvas.y.shape, canvas.channels))


def _blobs(rng: Generator, canvas: _Canvas) -> NDArray:
    """A gradient with soft spots, like something out of focus."""
    angle = rng.uniform(0, 2 * np.pi)
    image = _mixed(rng, canvas, _scaled(canvas.y * np.sin(angle) + canvas.x * np.cos(angle)))
    for _ in range(rng.integers(6)):
        distance = np.hypot(canvas.y - rng.uniform(0, canvas.y.max()), canvas.x - rng.uniform(0, canvas.x.max()))
        spot = np.exp(-((distance / rng.uniform(0.1, 0.4)) ** 2))[..., None]
        image = image + spot * (_colour(rng, canvas) - image)
    return image


def _stripes(rng: Generator, canvas: _Canvas) -> NDArray:
    """Stripes or a checkerboard, with hard or soft edges."""
    angle, period = rng.uniform(0, np.pi), rng.uniform(0.1, 0.6)
    across = canvas.y * np.sin(angle) + canvas.x * np.cos(angle), canvas.y * np.cos(angle) - canvas.x * np.sin(angle)
    waves = [np.sin(2 * np.pi * part / period + rng.uniform(0, 2 * np.pi)) for part in across]
    wave = waves[0] * waves[1] if rng.random() < 0.5 else waves[0]
    return _mixed(rng, canvas, (wave > 0) if rng.random() < 0.5 else _scaled(wave))


def _strokes(rng: Generator, canvas: _Canvas) -> NDArray:
    """Lines across the image, or rows of short strokes like lines of a text."""
    ink, size = np.zeros(canvas.y.shape, bool), np.array([canvas.y.max(), canvas.x.max()])
    is_text, lines, count = rng.random() < 0.5, rng.integers(2, 6), rng.integers(12, 30)
    width = rng.uniform(0.012, 0.03) if is_text else rng.uniform(0.015, 0.05)
    for number in range(4 * count if is_text else count):
        start, end = rng.random((2, 2)) * size
        if is_text:
            height = size[0] / lines
            start[0] = (number % lines + rng.uniform(0.2, 0.8)) * height
            end = start + rng.uniform(-0.3, 0.3, 2) * height
        box = canvas.box(np.minimum(start, end) - width, np.maximum(start, end) + width)
        along, y, x = end - start, canvas.y[box] - start[0], canvas.x[box] - start[1]
        part = ((y * along[0] + x * along[1]) / max(along @ along, 1e-9)).clip(0, 1)
        ink[box] |= np.hypot(y - part * along[0], x - part * along[1]) < width
    return _mixed(rng, canvas, ink)


def _discs(rng: Generator, canvas: _Canvas) -> NDArray:
    """Dead leaves: discs of all sizes that hide one another, with edges and areas like those of natural scenes."""
    image, size = np.array(_plain(rng, canvas)), np.array([canvas.y.max(), canvas.x.max()])
    for radius in 0.04 / np.sqrt(rng.uniform(0.006, 1, 250)):  # the number of discs falls with radius^3
        centre = rng.uniform(-0.1, 1.1, 2) * size
        box = canvas.box(centre - radius, centre + radius)
        image[box][np.hypot(canvas.y[box] - centre[0], canvas.x[box] - centre[1]) < radius] = _colour(rng, canvas)
    return image


_FAMILIES = {
    "noise": _noise, "clouds": _clouds, "plain": _plain, "blobs": _blobs, "stripes": _stripes, "strokes": _strokes,
    "discs": _discs,
}  # fmt: skip


def _colour(rng: Generator, canvas: _Canvas) -> NDArray:
    """A colour, from grey to saturated."""
    grey = rng.random()
    return grey + rng.random() * (rng.random(canvas.channels) - grey)


def _scaled(field: NDArray) -> NDArray:
    """Values from 0 to 1."""
    return (field - field.min()) / max(np.ptp(field), 1e-9)


def _mixed(rng: Generator, canvas: _Canvas, share: NDArray) -> NDArray:
    """Two colours that differ clearly, mixed by a share of the second for each pixel."""
    first = _colour(rng, canvas)
    second = (first + rng.uniform(0.3, 0.7)) % 1
    return first + share[..., None] * (second - first)


def _pixels(image: NDArray) -> NDArray[np.uint8]:
    """The pixels of an image of values from 0 to 1."""
    return (255 * image.clip(0, 1)).round().astype(np.uint8)
