"""What the generators share: pictures drawn at three times their size, colours, and smooth random fields."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
SCALE = 3  # pictures are drawn this many times larger, so that edges become smooth


def canvas(size: int, colour: int | Sequence[int] = 0) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    """Return a picture, grey if `colour` is a number, and what draws on it; coordinates are SCALE times as large."""
    colour = colour if isinstance(colour, int) else tuple(int(c) for c in colour)
    picture = Image.new("L" if isinstance(colour, int) else "RGB", (size * SCALE, size * SCALE), colour)
    return picture, ImageDraw.Draw(picture)


def reduced(picture: Image.Image) -> NDArray[np.float64]:
    """Return a drawn picture at its final size, (H, W, C), as numbers from 0 to 255."""
    pixels = np.asarray(picture.reduce(SCALE), float)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def as_pixels(values: ArrayLike) -> NDArray[np.uint8]:
    """Round to 0..255."""
    return np.rint(np.clip(values, 0, 255)).astype(np.uint8)


def smooth_noise(rng: np.random.Generator, size: int, cells: int) -> NDArray[np.float64]:
    """Draw a smooth random field (H, W, 1) of deviation about 1: clouds of about size / cells pixels."""
    coarse = Image.fromarray(rng.normal(size=(cells, cells)).astype(np.float32))
    return np.asarray(coarse.resize((size, size), Image.Resampling.BICUBIC), float)[..., None]


def turned(points: ArrayLike, angle: float, scale: ArrayLike = 1.0, centre: ArrayLike = (0, 0)) -> list[tuple]:
    """Turn points (N, 2) by an angle in radians, scale and move them; for `ImageDraw.polygon` and `line`."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    return [tuple(p) for p in (np.asarray(points) @ turn.T * np.asarray(scale) + np.asarray(centre)).tolist()]


def colour(hue: float, saturation: float, value: float) -> Colour:
    """A colour as red, green and blue; a hue of 1 is a whole turn."""
    red, green, blue = colorsys.hsv_to_rgb(hue % 1, saturation, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def mixed(first: Colour, second: Colour, part: float) -> Colour:
    """A colour between two."""
    red, green, blue = (round(a + part * (b - a)) for a, b in zip(first, second, strict=True))
    return red, green, blue
