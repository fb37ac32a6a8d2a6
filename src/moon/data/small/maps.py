"""Tiles of a map; a source is a style of maps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

from moon.data.small.drawing import Colour, as_pixels, canvas, colour, mixed, reduced, smooth_noise, turned
from moon.data.small.make import Source

_TERRAIN = ("forest", "fields", "mountains")


@dataclass
class _Tile:
    """A tile to draw on, turned by an angle, and the style of its map."""

    picture: Image.Image
    pen: ImageDraw.ImageDraw
    rng: np.random.Generator
    angle: float
    land: Colour
    water: Colour
    wood: Colour
    crop: Colour
    house: Colour
    road: Colour
    edge: Colour
    ink: Colour
    width: float

    def at(self, points: ArrayLike) -> list[tuple]:
        """Pixels of points; the tile is the square from -0.5 to 0.5, before it is turned."""
        side = self.picture.width
        return turned(points, self.angle, side, (side / 2, side / 2))

    def rectangle(self, centre: NDArray, extent: ArrayLike, fill: Colour) -> None:
        corners = np.array(((-1, -1), (1, -1), (1, 1), (-1, 1))) / 2
        self.pen.polygon(self.at(centre + corners * np.asarray(extent)), fill)

    def line(self, points: ArrayLike, width: float, fill: Colour | None = None) -> None:
        """Draw a line, or a road with its edges."""
        if fill is None:
            self.pen.line(self.at(points), self.edge, round(self.width * width) + 2, "curve")
        self.pen.line(self.at(points), fill or self.road, round(self.width * width), "curve")

    def winding(self, offset: float, bend: float = 0.1) -> NDArray:
        """Points of a winding way from left to right."""
        x = np.linspace(-0.8, 0.8, 25)
        phases = self.rng.uniform(0, 2 * np.pi, 2)
        return np.stack((x, offset + bend * np.sin(4 * x + phases[0]) + 0.4 * bend * np.sin(11 * x + phases[1])), 1)

    def patch(self, fill: Colour, share: float, cells: int) -> None:
        """Fill a share of the tile, in clouds."""
        field = smooth_noise(self.rng, self.picture.width, cells)[..., 0]
        self.picture.paste(fill, mask=Image.fromarray(field < np.quantile(field, share)))


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a tile; its map has colours, widths of lines and labels."""
    style = source.rng()
    lightness, strength = style.uniform((0.8, 0.6), (1, 1.5))
    land = colour(style.uniform(0.05, 0.25), style.uniform(0, 0.15), lightness)
    road = colour(style.uniform(0.08, 0.17), style.uniform(0, 0.6), 1)
    picture, pen = canvas(32, land)
    tile = _Tile(
        picture, pen, image, image.uniform(0, 2 * np.pi), land, road=road, edge=mixed(road, (60, 50, 40), 0.5),
        water=colour(style.uniform(0.5, 0.63), 0.4 * strength, lightness * 0.95),
        wood=colour(style.uniform(0.24, 0.38), 0.35 * strength, lightness * 0.82),
        crop=colour(style.uniform(0.1, 0.2), 0.25 * strength, lightness * 0.97),
        house=colour(style.uniform(0, 0.12), style.uniform(0.05, 0.4), lightness * style.uniform(0.5, 0.8)),
        ink=colour(style.random(), 0.3, 0.25), width=style.uniform(2.5, 5),
    )  # fmt: skip
    has_labels = style.random() < 0.6
    for fill in (tile.wood, tile.crop):
        if kind not in _TERRAIN and image.random() < 0.4:
            tile.patch(fill, image.uniform(0.05, 0.2), 4)
    _KINDS[kind](tile, image)
    if kind in ("coast", "river", *_TERRAIN) and image.random() < 0.5:
        tile.angle += image.uniform(0.7, 2.4)
        tile.line(tile.winding(image.uniform(-0.3, 0.3), 0.06), image.uniform(0.6, 1))
    for x, y in image.uniform((8, 10), (50, 86), (int(image.integers(0, 3)) * has_labels, 2)):
        pen.line((x, y, x + image.uniform(15, 35), y), tile.ink, 4)
    pixels = reduced(picture)
    return as_pixels(pixels * image.uniform(0.95, 1.03) + image.normal(0, image.uniform(0, 4), pixels.shape))


def _draw_roads(tile: _Tile, rng: np.random.Generator) -> None:
    tile.patch(mixed(tile.land, tile.house, 0.3), rng.uniform(0.3, 1), 4)
    for _ in range(2):
        tile.angle += np.pi / 2 + rng.normal(0, 0.04)
        for y in np.arange(rng.uniform(-0.8, -0.6), 0.8, rng.uniform(0.17, 0.3)):
            tile.line(((-0.9, y), (0.9, y + rng.normal(0, 0.03))), 1.2 if rng.random() < 0.25 else 0.6)


def _draw_forest(tile: _Tile, rng: np.random.Generator) -> None:
    tile.patch(tile.wood, rng.uniform(0.6, 0.95), 4)
    tile.patch(mixed(tile.wood, tile.ink, 0.12), rng.uniform(0.2, 0.4), 24)  # of the crowns of trees


def _draw_coast(tile: _Tile, rng: np.random.Generator) -> None:
    shore = tile.winding(rng.uniform(-0.2, 0.2), rng.uniform(0.04, 0.12))
    tile.pen.polygon(tile.at([*shore, (0.8, 1), (-0.8, 1)]), tile.water)
    tile.line(shore, 1, mixed(tile.crop, (255, 255, 200), 0.5))


def _draw_fields(tile: _Tile, rng: np.random.Generator) -> None:
    rows, columns = (int(n) for n in rng.integers(4, 8, 2))
    y, x = np.meshgrid(np.linspace(-0.8, 0.8, rows), np.linspace(-0.8, 0.8, columns), indexing="ij")
    knots = np.stack((x, y), 2) + rng.normal(0, 0.035, (rows, columns, 2))
    shades = [tile.crop, tile.land, tile.wood, mixed(tile.crop, tile.wood, 0.5), mixed(tile.crop, tile.house, 0.4)]
    for i, j in np.ndindex(rows - 1, columns - 1):
        corners = tile.at([knots[i, j], knots[i, j + 1], knots[i + 1, j + 1], knots[i + 1, j]])
        tile.pen.polygon(corners, shades[rng.integers(5)], mixed(tile.land, tile.edge, 0.5))


def _draw_river(tile: _Tile, rng: np.random.Generator) -> None:
    width, way = rng.uniform(1.5, 4), tile.winding(rng.uniform(-0.2, 0.2), rng.uniform(0.06, 0.15))
    tile.line(way, width, tile.water)
    if rng.random() < 0.4:  # a second river flows into it
        tile.line((way[12], rng.uniform((-0.4, 0.6), (0.4, 0.8))), width / 2, tile.water)


def _draw_village(tile: _Tile, rng: np.random.Generator) -> None:
    way = tile.winding(rng.uniform(-0.15, 0.15), 0.06)
    tile.line(way, 1)
    tile.line((way[12], rng.uniform((-0.4, -0.8), (0.4, -0.6))), 0.7)
    for x, y in way[4:21]:
        for side in (-1, 1):
            place = np.array((x, y + side * rng.uniform(0.1, 0.16))) + rng.normal(0, 0.02, 2)
            if rng.random() < 0.75:
                tile.rectangle(place, rng.uniform(0.05, 0.09, 2), tile.house)


def _draw_airport(tile: _Tile, rng: np.random.Generator) -> None:
    grey, place = mixed(tile.house, (140, 140, 145), 0.6), rng.uniform(-0.12, 0.05)
    tile.rectangle(np.array((0, 0.05)), (0.95, 0.7), mixed(tile.land, tile.wood, 0.4))
    tile.line(((-0.45, place), (0.45, place)), 2, grey)
    tile.line(((-0.45, place), (-0.38, place + 0.15), (0.38, place + 0.15), (0.45, place)), 0.7, grey)
    tile.line(((-0.35, -0.35), (0.3, rng.uniform(0.2, 0.4))), 1.6, grey)
    tile.rectangle(np.array((rng.uniform(-0.2, 0.2), place + 0.26)), (0.25, 0.1), tile.house)


def _draw_harbour(tile: _Tile, rng: np.random.Generator) -> None:
    shore = rng.uniform(-0.25, 0)
    tile.rectangle(np.array((0, shore + 0.75)), (2, 1.5), tile.water)
    for x in np.arange(-0.7, 0.7, rng.uniform(0.17, 0.28)):
        length = rng.uniform(0.2, 0.45)
        tile.rectangle(np.array((x, shore + length / 2)), (0.07, length), mixed(tile.land, tile.house, 0.4))
        tile.rectangle(np.array((x + 0.07, shore + rng.uniform(0.1, 0.3))), (0.04, 0.12), tile.ink)
        tile.rectangle(np.array((x, shore - 0.12)), (0.12, 0.09), tile.house)


def _draw_mountains(tile: _Tile, rng: np.random.Generator) -> None:
    tile.patch(mixed(tile.land, tile.wood, 0.5), rng.uniform(0.2, 0.5), 4)
    height = smooth_noise(rng, tile.picture.width, 4)[..., 0] * rng.uniform(2.5, 4)
    down, across = np.gradient(height)
    contours = Image.fromarray(height % 1 < 1.4 * np.hypot(down, across))
    tile.picture.paste(mixed(tile.edge, tile.house, 0.5), mask=contours)


def _draw_railway(tile: _Tile, rng: np.random.Generator) -> None:
    x = np.linspace(-0.8, 0.8, 41)
    for y in np.linspace(-0.22, 0.22, int(rng.integers(5, 9))):
        track = np.stack((x, y * np.clip(2.2 - 4 * np.abs(x), 0.12, 1)), 1)
        tile.line(track, 0.6, mixed(tile.ink, tile.land, 0.3))
        for first in range(0, 40, 2):
            tile.line(track[first : first + 2], 0.3, tile.land)
    tile.rectangle(np.array((rng.uniform(-0.2, 0.2), 0.4)), (0.3, 0.1), tile.house)


_KINDS = {
    "roads": _draw_roads, "forest": _draw_forest, "coast": _draw_coast, "fields": _draw_fields, "river": _draw_river,
    "village": _draw_village, "airport": _draw_airport, "harbour": _draw_harbour, "mountains": _draw_mountains,
    "railway": _draw_railway,
}  # fmt: skip
