"""Plates of brushed metal before a camera; a source is a plate with its lamp and camera."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from moon.data.small.drawing import SCALE, as_pixels, reduced, smooth_noise
from moon.data.small.make import Source

_SIDE = 40 * SCALE
_Y, _X = (np.mgrid[:_SIDE, :_SIDE] / _SIDE - 0.5).astype(np.float32)  # from -0.5 to 0.5


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Paint a plate with a defect; its source has a brush, a lamp, a camera."""
    plate = source.rng()
    brushed, lamp = plate.uniform(0, 180), plate.uniform(0, 2 * np.pi)
    level, contrast, grain, shade, blur = plate.uniform((80, 55, 2, 0, 0.8), (170, 90, 10, 35, 2)).tolist()
    length = int(plate.integers(4, 20))  # of the marks of the brush, against their width
    marks = Image.fromarray(image.normal(0, 1, (_SIDE, max(6, _SIDE // length))).astype(np.float32))
    marks = marks.resize((_SIDE * 3 // 2, _SIDE * 3 // 2), Image.Resampling.BICUBIC)
    edge = _SIDE // 4
    marks = marks.rotate(brushed, Image.Resampling.BILINEAR).crop((edge, edge, edge + _SIDE, edge + _SIDE))
    lit = _X * np.cos(lamp) + _Y * np.sin(lamp)
    surface = level + grain * np.asarray(marks) + 2 * shade * lit
    place, turn = image.uniform(-0.2, 0.2, 2), image.uniform(0, 2 * np.pi)
    u, v = _X - place[0], _Y - place[1]
    u, v = u * np.cos(turn) + v * np.sin(turn), v * np.cos(turn) - u * np.sin(turn)
    if kind != "none":
        defect = _defect(kind, u, v, lamp - turn, np.radians(brushed) + turn, image)
        surface += contrast * image.uniform(0.7, 1.2) * defect
    picture = Image.fromarray(as_pixels(surface)).filter(ImageFilter.GaussianBlur(blur))
    pixels = reduced(picture)
    return as_pixels(pixels * image.uniform(0.9, 1.1) + image.normal(0, image.uniform(1, 5), pixels.shape))


def _defect(kind: str, u: NDArray, v: NDArray, lamp: float, brushed: float, rng: np.random.Generator) -> NDArray:
    """How much brighter a defect is, about its centre; the lamp and the brush are directions there."""
    size = rng.uniform(0.7, 1.3)
    radius = np.hypot(u, v) / size
    rough = 0.05 * smooth_noise(rng, _SIDE, 14)[..., 0]
    if kind == "scratch":
        bow = rng.uniform(-0.4, 0.4) * u**2
        return rng.choice((-1.2, 1.2)) * _line(v - bow, 0.012) * (np.abs(u) < 0.35 * size)
    if kind == "spots":
        size *= 0.03
        places = rng.normal(0, 0.17, (int(rng.integers(5, 12)), 2))
        return -np.sum([_dot(np.hypot(u - x, v - y), size * rng.uniform(0.7, 1.3)) for x, y in places], 0)
    if kind == "crack":
        path = np.cumsum(rng.normal(0, 0.035, 24))
        way = np.interp(u, np.linspace(-0.4, 0.4, 24) * size, path - path.mean()) + rough * 0.2
        branch = np.interp(u, np.linspace(0, 0.35, 8) * size, np.cumsum(rng.normal(0.04, 0.03, 8)))
        main = _line(v - way, 0.012) * (np.abs(u) < 0.4 * size)
        return -1.5 * np.maximum(main, _line(v - way - branch, 0.009) * (u > 0) * (u < 0.35 * size))
    if kind == "inclusion":  # a dark streak, along the brush
        a, b = u * np.cos(brushed) - v * np.sin(brushed), u * np.sin(brushed) + v * np.cos(brushed)
        return -_dot(np.hypot(a / rng.uniform(3, 5), b) + rough * 0.3, 0.05 * size)
    if kind == "dent":  # one side is lit, the other in the shade
        toward = u * np.cos(lamp) + v * np.sin(lamp)
        wide = 0.14 * size
        return -2 * toward / wide * np.exp(-((radius * size / wide) ** 2) / 2)
    if kind == "hole":
        return _line(radius - 0.15, 0.02) - 2.2 * _dot(radius, 0.14)
    if kind == "weld":  # a band of ripples like scales
        ripple = np.sin(2 * np.pi * (u + 3 * v**2) / 0.09)
        return (0.5 * ripple + 0.4) * _dot(np.abs(v) + rough * 0.2, 0.11 * size) - _line(np.abs(v) - 0.12 * size, 0.012)
    if kind == "rust":
        return -_dot(radius + 2.5 * rough, 0.25) * (0.7 + 8 * np.abs(rough))
    ridges = np.sin(2 * np.pi * (np.hypot(u, 0.75 * v + 0.08) + 0.2 * rough) / 0.075)  # a finger print
    return -0.6 * (0.5 + ridges) * _dot(np.hypot(u, 0.75 * v), 0.25 * size)


def _line(distance: NDArray, width: float) -> NDArray:
    """1 on a line, 0 far from it."""
    return np.exp(-((distance / width) ** 2) / 2)


def _dot(distance: NDArray, radius: float) -> NDArray:
    """1 within a radius, 0 outside, with a soft edge."""
    return np.clip((radius - distance) / 0.02 + 0.5, 0, 1)
