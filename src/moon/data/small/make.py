"""Draw the sets of the suite. A set depends on seeds only: every class and source has the same share of its images."""

from __future__ import annotations

from importlib import import_module
from typing import NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from moon.data.dataset import DataSet, as_dataset
from moon.data.small import FAR, SPLITS, SUITE, Small
from moon.data.small.drawing import as_pixels

_STREAMS = ("sources", *SPLITS, "near", *FAR)  # of random numbers


class Source(NamedTuple):
    """What images share that are alike for another reason than their class: a font, a machine, a plant."""

    benchmark: str
    number: int

    def rng(self) -> np.random.Generator:
        """A new generator, the same for all images of this source."""
        return _generator(self.benchmark, "sources", self.number)


def _generator(benchmark: str, stream: str, number: int) -> np.random.Generator:
    return np.random.default_rng([crc32(benchmark.encode()), _STREAMS.index(stream), number])


def make_small(name: str, split: str) -> DataSet:
    """Draw a split of a set of the suite, `small-NAME`, `small-NAME-near` or one of its far sets."""
    benchmark, _, kind = name.removeprefix("small-").partition("-")
    small = SUITE[benchmark]
    if kind in FAR:
        images = _far(benchmark, small, kind)
    else:
        kinds, count = (small.near, small.counts[2]) if kind else (small.known, _of(small.counts, split))
        images = _drawn(benchmark, kinds, split, kind or split, count)
    labels = np.full(len(images), -1) if kind else np.arange(len(images)) % len(small.known)
    return as_dataset(np.stack(images), labels, name, () if kind else small.known)


def _of(numbers: tuple[int, int, int], split: str) -> int:
    return numbers[SPLITS.index(split)]


def _drawn(benchmark: str, kinds: tuple[str, ...], split: str, stream: str, count: int) -> list[NDArray[np.uint8]]:
    """Draw images of the classes in turn, from the sources of a split in turn."""
    draw = import_module(f"moon.data.small.{benchmark}").draw
    sources = SUITE[benchmark].sources
    first, number = sum(sources[: SPLITS.index(split)]), _of(sources, split)
    return [
        draw(
            kinds[index % len(kinds)],
            Source(benchmark, first + index // len(kinds) % number),
            _generator(benchmark, stream, index),
        )
        for index in range(count)
    ]


def _far(benchmark: str, small: Small, kind: str) -> list[NDArray[np.uint8]]:
    """Draw noise and constant images, or blur or invert test images."""
    from PIL import Image, ImageFilter

    generators = [_generator(benchmark, kind, index) for index in range(FAR[kind])]
    if kind in ("noise", "constant"):
        make = _noise if kind == "noise" else _constant
        return [make(rng, small.size, small.channels, index) for index, rng in enumerate(generators)]
    known = _drawn(benchmark, small.known, "test", "test", FAR[kind])
    if kind == "inverted":
        return [255 - image for image in known]
    blur = ImageFilter.GaussianBlur(small.size / 6)
    return [np.asarray(Image.fromarray(image.squeeze()).filter(blur)).reshape(image.shape) for image in known]


def _noise(rng: np.random.Generator, size: int, channels: int, index: int) -> NDArray[np.uint8]:
    """Uniform, normal or salt-and-pepper noise in turn."""
    shape = size, size, channels
    if index % 3 == 0:
        return rng.integers(256, size=shape, dtype=np.uint8)
    if index % 3 == 1:
        return as_pixels(rng.normal(rng.uniform(64, 192), rng.uniform(16, 80), shape))
    values, share = rng.uniform(size=shape), rng.uniform(0.05, 0.5)
    return as_pixels(np.where(values < share / 2, 0, np.where(values > 1 - share / 2, 255, rng.integers(64, 192))))


def _constant(rng: np.random.Generator, size: int, channels: int, index: int) -> NDArray[np.uint8]:
    """One colour: exactly, with a faint gradient, or with the noise of a sensor, of at most 2 levels."""
    ramp = np.linspace(-2, 2, size)[:, None, None]
    added = (0, ramp, rng.uniform(-2, 2, (size, size, channels)))[index % 3]
    return as_pixels(rng.integers(256, size=channels) + added * np.ones((size, size, 1)))
