"""Leaves of trees on paper, soil or stone; a source is a plant as it was photographed: colours, ground and light."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.data.small.drawing import SCALE, as_pixels, canvas, reduced, smooth_noise, turned
from moon.data.small.make import Source

_SIZE = 32
_T = np.linspace(0, 1, 81)  # along a blade


def _fan(*sides: tuple[float, float]) -> list[tuple[float, float, float]]:
    """One blade in the middle and others, by angle and length, on both sides."""
    return [(0, 0, 1), *((0, sign * angle, length) for sign in (-1, 1) for angle, length in sides)]


# A leaf is made of blades (where on the stalk, angle in degrees, length) of one shape: half its width, how slowly it
# widens at its base and narrows at its tip, and how many lobes (depth above 0) or spines (below 0) are on each side.
_SPECIES = {
    "maple": (_fan((52, 0.9), (105, 0.55)), 0.21, 0.5, 0.7, 3, -0.4),
    "oak": (_fan(), 0.36, 0.8, 0.3, 3.4, 0.6),
    "birch": (_fan(), 0.36, 0.35, 0.9, 8, -0.2),
    "willow": (_fan(), 0.1, 0.6, 0.8, 0, 0),
    "ginkgo": ([(0, a, 1) for a in (-52, -32, -12, 12, 32, 52)], 0.19, 1.3, 0.15, 0, 0),
    "linden": ([(0.1, 0, 0.9), (0.1, -110, 0.45), (0.1, 110, 0.45)], 0.5, 0.3, 0.8, 8, -0.1),
    "holly": (_fan(), 0.32, 0.4, 0.5, 5, -0.5),
    "ash": ([(0.8, 0, 0.4), *((p, a, 0.42) for p in (0.2, 0.5, 0.8) for a in (-55, 55))], 0.3, 0.6, 0.8, 0, 0),
    "poplar": (_fan(), 0.5, 0.12, 1.0, 7, 0.06),
    "chestnut": (_fan((38, 0.95), (78, 0.8), (115, 0.55)), 0.16, 1.2, 0.5, 0, 0),
    "beech": (_fan(), 0.33, 0.6, 0.6, 0, 0),
    "plane": (_fan((58, 0.95)), 0.3, 0.45, 0.75, 2, -0.25),
}


def _blades(kind: str, image: np.random.Generator) -> list[NDArray[np.float64]]:
    """The outlines of a leaf's blades, which begin and end at their base; the leaf points along x."""
    blades, width, base, tip, waves, depth = _SPECIES[kind]
    half = _T**base * (1 - _T) ** tip
    phase = np.pi * waves * _T ** image.uniform(0.85, 1.15)
    margin = depth * np.sin(phase) ** 2 if depth > 0 else -depth * np.abs(np.sin(phase)) ** 0.7
    half *= width * image.uniform(0.85, 1.15) / half.max() * (1 - margin)
    outline = np.concatenate([np.stack([_T, half], 1), np.stack([_T, -half], 1)[::-1]])
    angles, lengths = image.normal(0, 0.05, len(blades)), image.uniform(0.93, 1.07, len(blades))
    return [
        np.array(turned(outline, np.radians(angle) + angles[i], length * lengths[i], (start, 0)))
        for i, (start, angle, length) in enumerate(blades)
    ]


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw the blades of a leaf with its veins and shadow, bent, turned and lit."""
    plant = source.rng()
    season, tone, shade = plant.uniform() < 0.7, plant.uniform(0.7, 1.25), plant.uniform(-1, 1, 3) * 20
    colour = (np.array([70, 120, 45]) if season else np.array([175, 105, 40])) * tone + shade
    ground = np.array([(225, 222, 212), (105, 80, 58), (140, 140, 145)])[source.number % 3] + plant.uniform(-25, 25)
    rough, cast, vein = plant.uniform(2, 22), plant.uniform(-3, 3, 2), colour + plant.choice([-40, 60])
    lit, length = plant.uniform(0, 2 * np.pi), plant.uniform(23, 30)
    picture = ground + rough * smooth_noise(image, _SIZE, 12) + rough * image.normal(0, 0.5, (_SIZE, _SIZE, 1))
    blades, bend, angle = _blades(kind, image), image.uniform(-0.25, 0.25), image.normal(-np.pi / 2, 0.6)
    stalk = np.stack([np.linspace(-0.3, blades[-1][0, 0], 9), np.zeros(9)], 1)
    middles = [(blade + blade[::-1])[: len(_T)] / 2 for blade in blades]
    for line in (*blades, *middles, stalk):
        line[:, 1] += bend * line[:, 0] ** 2
    corners = np.array(turned(np.concatenate(blades), angle))
    low, high = corners.min(0), corners.max(0)
    scale = length / (high - low).max()
    centre = (_SIZE / 2 - scale * (low + high) / 2 + image.uniform(-1, 1, 2) * (31 - length) / 2) * SCALE
    leaf, leaf_pen = canvas(_SIZE)
    veins, vein_pen = canvas(_SIZE)
    for blade in blades:
        leaf_pen.polygon(turned(blade, angle, scale * SCALE, centre), fill=255)
    for line in (stalk, *middles):
        vein_pen.line(turned(line, angle, scale * SCALE, centre), fill=255, width=2)
    inside, lines = reduced(leaf) / 255, reduced(veins) / 255
    picture *= 1 - 0.45 * np.roll(inside, np.rint(cast).astype(int), (0, 1))
    picture += inside * (colour * (1 + 0.1 * smooth_noise(image, _SIZE, 6)) - picture)
    picture += 0.6 * lines * (vein - picture)
    y, x = np.indices((_SIZE, _SIZE))[..., None] / _SIZE - 0.5
    light = image.uniform(0.8, 1.15) * (1 + 0.35 * (np.cos(lit) * x + np.sin(lit) * y))
    return as_pixels(picture * light + image.normal(0, image.uniform(1, 6), picture.shape))
