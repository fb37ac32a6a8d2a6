"""Letters in the fonts of matplotlib; a source is a font file."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFont

from moon.data.embedded import FONTS, package_folder
from moon.data.small.drawing import SCALE, as_pixels, canvas, reduced
from moon.data.small.make import Source

_SIZE = 28


@cache
def _font(number: int) -> ImageFont.FreeTypeFont:
    """A font, in an order that mixes the families."""
    name = FONTS[np.random.default_rng(0).permutation(len(FONTS))[number]]
    return ImageFont.truetype(package_folder("matplotlib", "mpl-data", "fonts", "ttf") / f"{name}.ttf", 18 * SCALE)


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a letter of a font, bright on dark, as printed and scanned: moved, turned, sheared, bolder, with noise."""
    picture, pen = canvas(_SIZE)
    middle = picture.width / 2
    bold = int(image.integers(0, 3))
    pen.text((middle, middle), kind, fill=255, font=_font(source.number), anchor="mm", stroke_width=bold)
    angle, shear, size = image.uniform(-0.25, 0.25), image.uniform(-0.25, 0.25), image.uniform(0.75, 1.2)
    turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]]) @ [[1, shear], [0, 1]] / size
    shift = middle - turn @ (middle + image.uniform(-2.5, 2.5, 2) * SCALE)
    matrix = (*turn[0], shift[0], *turn[1], shift[1])
    picture = picture.transform(picture.size, Image.Transform.AFFINE, matrix, Image.Resampling.BILINEAR)
    paper, ink = image.uniform(0, 40), image.uniform(150, 255)
    letter = paper + reduced(picture) / 255 * (ink - paper)
    return as_pixels(letter + image.normal(0, image.uniform(2, 14), letter.shape))
