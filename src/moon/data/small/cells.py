"""Cells of blood as under a microscope; a source is a slide."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, sin

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from moon.data.small.drawing import SCALE, Colour, as_pixels, colour, mixed, reduced, smooth_noise
from moon.data.small.make import Source

_SIDE = 32 * SCALE
_Y, _X = np.mgrid[:_SIDE, :_SIDE].astype(np.float32)
_LOBES = {"neutrophil": (3, 4), "eosinophil": (2, 2), "basophil": (2, 3)}  # fewest and most


@dataclass
class _Field:
    """What the microscope shows, and the stains of the slide."""

    pixels: NDArray[np.float32]
    rng: np.random.Generator
    plasma: Colour
    nucleus: Colour
    red: Colour
    eosin: Colour

    def oval(self, centre: NDArray, radius: float, stretch: float = 1.1, rough: float = 0.05) -> NDArray[np.float32]:
        """The distance from a centre, 1 at the edge of an uneven oval."""
        angle, phase = self.rng.uniform(0, 2 * np.pi, 2).tolist()
        u, v = _X - float(centre[0]), _Y - float(centre[1])
        u, v = u * cos(angle) + v * sin(angle), (v * cos(angle) - u * sin(angle)) * stretch
        return np.hypot(u, v) / (1 + rough * np.sin(3 * np.arctan2(v, u) + phase)) / radius

    def stain(self, distance: NDArray, shade: Colour, strength: NDArray | float = 1, mottle: float = 0) -> None:
        """Colour what is nearer than 1, evenly or mottled."""
        inside = distance < 1
        cover = (strength * np.minimum((1 - distance) * 8, 1))[inside, None]
        lightness = 1 + mottle * smooth_noise(self.rng, _SIDE, 16)[inside] if mottle else 1
        self.pixels[inside] += cover * (np.array(shade, np.float32) * lightness - self.pixels[inside])

    def grain(self, centre: NDArray, reach: float, size: float, count: int, shade: Colour) -> None:
        """Scatter granules about a centre."""
        mask = Image.new("L", (_SIDE, _SIDE))
        pen = ImageDraw.Draw(mask)
        for angle, way, grown in self.rng.uniform((0, 0, 0.7), (2 * np.pi, 1, 1.3), (count, 3)):
            x, y = centre + reach * np.sqrt(way) * np.array((np.cos(angle), np.sin(angle)))
            pen.ellipse((x - size * grown, y - size * grown, x + size * grown, y + size * grown), 255)
        self.stain(1 - np.asarray(mask, np.float32) / 255, shade, 0.8)

    def red_cell(self, centre: NDArray, radius: float) -> None:
        """A cell without a nucleus, pale in its middle."""
        distance = self.oval(centre, radius, self.rng.uniform(1, 1.2))
        self.stain(distance, self.red, 1 - self.rng.uniform(0.2, 0.7) * np.clip(1.2 - 1.5 * distance, 0, 1))


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Paint a cell; its slide has stains, a light, a focus and other cells around."""
    slide = source.rng()
    field = _Field(
        np.full((_SIDE, _SIDE, 3), colour(*slide.uniform((0, 0, 0.8), (1, 0.12, 1))), np.float32), image,
        plasma=colour(*slide.uniform((0.55, 0.15, 0.72), (0.78, 0.32, 0.92))),
        nucleus=colour(*slide.uniform((0.7, 0.5, 0.35), (0.82, 0.8, 0.6))),
        red=colour(*slide.uniform((-0.05, 0.25, 0.75), (0.06, 0.5, 0.95))),
        eosin=colour(*slide.uniform((-0.02, 0.55, 0.8), (0.07, 0.8, 1))),
    )  # fmt: skip
    focus, crowd, shade, angle = slide.uniform((0.3, 0, 0, 0), (2, 4, 0.25, 2 * np.pi)).tolist()
    middle = np.full(2, _SIDE / 2)
    for turn in image.uniform(0, 2 * np.pi, image.poisson(crowd)):  # red cells at the edge of the field
        place = middle * (1 + 1.15 * np.array((np.cos(turn), np.sin(turn))))
        field.red_cell(place, _SIDE * image.uniform(0.17, 0.21))
    centre, size, turn = middle + image.normal(0, 4, 2), _SIDE * image.uniform(0.88, 1.12), image.uniform(0, 2 * np.pi)
    paint = _paint_red if kind in ("red", "parasite", "sickle") else _paint_white
    paint(kind, field, centre, size, np.array((np.cos(turn), np.sin(turn))))
    light = 1 - shade * ((_X * np.cos(angle) + _Y * np.sin(angle)) / _SIDE + 1) / 2
    picture = Image.fromarray(as_pixels(field.pixels * light[..., None] * image.uniform(0.93, 1.05)))
    pixels = reduced(picture.filter(ImageFilter.GaussianBlur(focus * image.uniform(0.8, 1.3))))
    return as_pixels(pixels + image.normal(0, image.uniform(1, 5), pixels.shape))


def _paint_red(kind: str, field: _Field, centre: NDArray, size: float, toward: NDArray) -> None:
    """Paint a red cell, which may be bent or have a parasite."""
    radius = 0.26 * size
    if kind == "sickle":
        bite = field.oval(centre + toward * radius * 0.75, radius * 1.25, 1)
        field.stain(np.maximum(field.oval(centre, radius * 1.3, 1), 2 - bite), field.red, 0.95, 0.05)
        return
    field.red_cell(centre, radius)
    if kind == "parasite":  # a ring with a dot
        place = centre + toward * radius * 0.3
        ring = field.oval(place, radius * 0.42, 1.2)
        field.stain(np.abs(ring - 0.75) / 0.3, field.nucleus, 0.9)
        field.stain(field.oval(place + toward[::-1] * radius * 0.32, 4), field.nucleus)


def _paint_white(kind: str, field: _Field, centre: NDArray, size: float, toward: NDArray) -> None:
    """Paint a white cell, platelets or a yeast."""
    rng, across = field.rng, np.array((-toward[1], toward[0]))
    if kind == "platelets":
        for place in centre + rng.normal(0, 0.11 * size, (rng.integers(6, 12), 2)):
            field.stain(field.oval(place, size * rng.uniform(0.05, 0.08), 1.2, 0.15), field.nucleus, 0.7, 0.2)
    elif kind == "yeast":  # a mother and her bud
        for way, part in ((-0.1, 0.19), (0.17, 0.11)):
            field.stain(field.oval(centre + way * size * toward, part * size, 1.2), field.nucleus, 0.8, 0.1)
            field.stain(field.oval(centre + way * size * toward, 0.6 * part * size), field.plasma, 0.8, 0.1)
    elif kind == "lymphocyte":
        field.stain(field.oval(centre, 0.25 * size), field.plasma, 0.9, 0.05)
        field.stain(field.oval(centre + toward * 0.03 * size, size * rng.uniform(0.18, 0.215)), field.nucleus, 1, 0.12)
    elif kind == "monocyte":  # large, with a nucleus like a kidney
        field.stain(field.oval(centre, 0.37 * size, 1.1, 0.08), field.plasma, 1, 0.08)
        bite = field.oval(centre + toward * 0.2 * size, 0.17 * size)
        field.stain(np.maximum(field.oval(centre, 0.23 * size), 2 - bite), field.nucleus, 0.9, 0.12)
    else:
        field.stain(field.oval(centre, 0.32 * size), field.plasma, 0.75, 0.05)
        if kind == "neutrophil":
            field.grain(centre, 0.28 * size, 1.2, 40, mixed(field.plasma, field.nucleus, 0.3))
        elif kind == "eosinophil":
            field.grain(centre, 0.28 * size, 2.6, 45, field.eosin)
        fewest, most = _LOBES[kind]
        for way in np.linspace(-1, 1, int(rng.integers(fewest, most + 1))):
            place = centre + size * (0.15 * way * toward + 0.11 * (way**2 - 0.5) * across)
            field.stain(field.oval(place, size * rng.uniform(0.085, 0.11), 1.2), field.nucleus, 0.95, 0.1)
        if kind == "basophil":
            field.grain(centre, 0.29 * size, 3, 36, mixed(field.nucleus, (0, 0, 0), 0.3))
