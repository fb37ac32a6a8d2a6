"""Drawn shapes on backgrounds; a source is a style: colours, background, filled or outlined."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.data.small.drawing import SCALE, as_pixels, canvas, reduced, smooth_noise, turned
from moon.data.small.make import Source

_SIZE = 32
_T = np.linspace(0, 2 * np.pi, 41)


def _corners(count: int, *radii: float) -> NDArray[np.float64]:
    """Corners in equal angles, on circles in turn."""
    angles = np.arange(count) * 2 * np.pi / count
    return np.resize(radii, count)[:, None] * np.stack([np.cos(angles), np.sin(angles)], 1)


_CIRCLE, _HALF = _corners(40, 1), np.stack([np.cos(_T / 2), np.sin(_T / 2)], 1)
_LOOPS = {  # an outline, and that of a hole
    "circle": [_CIRCLE],
    "triangle": [_corners(3, 1)],
    "square": [_corners(4, 1)],
    "star": [_corners(10, 1, 0.42)],
    "cross": [np.concatenate([turned([(1, -0.3), (1, 0.3), (0.3, 0.3)], k * np.pi / 2) for k in range(4)])],
    "ring": [_CIRCLE, _CIRCLE * 0.5],
    "bar": [[(1, 0.28), (-1, 0.28), (-1, -0.28), (1, -0.28)]],
    "half": [_HALF - (0, 0.4)],
    "pentagon": [_corners(5, 1)],
    "arrow": [[(1, 0), (0.1, 0.75), (0.1, 0.28), (-1, 0.28), (-1, -0.28), (0.1, -0.28), (0.1, -0.75)]],
    "heart": [np.stack([np.sin(_T) ** 3, (13 * np.cos(_T) - 5 * np.cos(2 * _T) - 2 * np.cos(3 * _T)) / 15], 1)],
    "crescent": [np.concatenate([_HALF, _HALF[::-1] * (1, 0.4)]) - (0, 0.5)],
    "drop": [np.stack([np.cos(_T), 0.85 * np.sin(_T) * np.sin(_T / 2) ** 2], 1)],
}


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a shape in the style of its source; place, size, angle, colours and noise vary."""
    style = source.rng()
    paper, *inks = style.permutation(np.linspace(30, 225, 4))[:, None] + style.uniform(-70, 70, (4, 3))
    direction, period, line = style.uniform(0, np.pi), style.uniform(4, 12), style.uniform(0.8, 1.8)
    pattern, is_filled, is_lined = style.integers(4), style.uniform() < 0.8, style.uniform() < 0.5
    y, x = np.indices((_SIZE, _SIZE))[..., None] - _SIZE / 2
    along = np.cos(direction) * x + np.sin(direction) * y
    clouds = smooth_noise(image, _SIZE, int(period))
    stripes = np.sign(np.sin(2 * np.pi * along / period))
    picture = paper + (0 * along, 1.5 * along, 14 * stripes, 16 * clouds)[pattern]
    first, second = image.permutation(3)[:2]
    radius, angle = image.uniform(8, 12), image.uniform(0, 2 * np.pi)
    centre = (_SIZE / 2 + image.uniform(-1, 1, 2) * (14 - radius)) * SCALE
    loops = [turned(loop, angle, radius * SCALE, centre) for loop in _LOOPS[kind]]
    fill, fill_pen = canvas(_SIZE)
    outline, outline_pen = canvas(_SIZE)
    for index, loop in enumerate(loops):
        fill_pen.polygon(loop, fill=0 if index else 255)
        outline_pen.line([*loop, *loop[:2]], fill=255, width=round(line * SCALE), joint="curve")
    for mask, ink, is_drawn in ((fill, first, is_filled), (outline, second, is_lined or not is_filled)):
        picture += reduced(mask) / 255 * is_drawn * (inks[ink] - picture)
    return as_pixels(picture * image.uniform(0.8, 1.1) + image.normal(0, image.uniform(1, 8), picture.shape))
