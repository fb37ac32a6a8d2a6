"""Patches of the photographs of scikit-image; a source is a cell of a 4x4 grid over each photograph."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moon.data.decoding import FORMATS
from moon.data.embedded import package_folder
from moon.data.small.drawing import as_pixels
from moon.data.small.make import Source

_SIZE, _GAP = 32, 8  # between the cells, in pixels on either side
_PHOTOS = {  # the file, and the part of it that shows the surface
    "brick": ("brick.png", (0, 0, 512, 512)),
    "grass": ("grass.png", (0, 0, 512, 512)),
    "gravel": ("gravel.png", (0, 0, 512, 512)),
    "tissue": ("ihc.png", (0, 0, 512, 512)),
    "fur": ("chelsea.png", (30, 0, 350, 300)),
    "moon": ("moon.png", (0, 0, 512, 512)),
    "retina": ("retina.jpg", (300, 300, 1100, 1100)),
    "coins": ("coins.png", (0, 0, 384, 303)),
    "cup": ("coffee.png", (100, 0, 500, 400)),
    "print": ("page.png", (0, 0, 384, 191)),
    "metal": ("motorcycle_left.png", (100, 50, 640, 450)),
}


@cache
def _photo(kind: str) -> Image.Image:
    """The part of a photograph that shows a surface, in grey."""
    name, part = _PHOTOS[kind]
    return Image.open(package_folder("skimage", "data") / name, formats=FORMATS).convert("L").crop(part)


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Cut a square of 24 to 96 pixels out of a cell, turned by right angles, in the light of the source."""
    photo, light = _photo(kind), source.rng()
    cell = np.array(divmod(int(np.random.default_rng(0).permutation(16)[source.number]), 4))
    extent = np.array(photo.size) / 4
    side = image.uniform(24, min(96, *(extent - 2 * _GAP)))
    left, top = cell * extent + _GAP + image.uniform(0, 1, 2) * (extent - 2 * _GAP - side)
    box = left, top, left + side, top + side
    pixels = np.asarray(photo.resize((_SIZE, _SIZE), Image.Resampling.BILINEAR, box), float)
    contrast, brightness = light.uniform(0.6, 1.1) * image.uniform(0.85, 1.15), light.normal(0, 20) + image.normal(0, 8)
    pixels = 128 + contrast * (np.rot90(pixels, int(image.integers(4))) - 128) + brightness
    return as_pixels(pixels[..., None])
