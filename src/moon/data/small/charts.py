"""Charts as in a document; a source is a document."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import ImageDraw

from moon.data.small.drawing import Colour, as_pixels, canvas, colour, mixed, reduced
from moon.data.small.make import Source


@dataclass
class _Chart:
    """A page to draw on, the box of the chart (left, top, right, bottom) and the style of its document."""

    draw: ImageDraw.ImageDraw
    box: NDArray
    palette: list[Colour]
    ink: Colour
    paper: Colour
    width: int

    def at(self, *numbers: float) -> list[float]:
        """Pixels of points x, y, x, y, ..., both from 0 (left, bottom) to 1."""
        left, top, right, bottom = self.box
        x, y = np.array(numbers).reshape(-1, 2).T
        return np.stack((left + x * (right - left), bottom - y * (bottom - top)), 1).ravel().tolist()

    def bar(self, corners: tuple[float, float, float, float], fill: Colour, outline: Colour | None = None) -> None:
        """Fill a rectangle; the corners are left, bottom, right, top."""
        left, bottom, right, top = corners
        self.draw.rectangle(self.at(left, top, right, bottom), fill, outline, 2)


def draw(kind: str, source: Source, image: np.random.Generator) -> NDArray[np.uint8]:
    """Draw a chart; its document has a palette, a paper, axes, a grid and a line width."""
    style = source.rng()
    dark = style.random() < 0.3
    paper = colour(style.random(), style.uniform(0, 0.15), style.uniform(0.1, 0.25) if dark else style.uniform(0.88, 1))
    ink = colour(style.random(), 0.1, 0.8 if dark else style.uniform(0.1, 0.5))
    hue, step, strength, value = style.uniform((0, 0.06, 0.4, 0.75 if dark else 0.6), (1, 0.4, 1, 1))
    palette = [colour(hue + step * i, strength, value * (1 - 0.06 * i)) for i in range(6)]
    width, axes, lines = int(style.integers(2, 7)), style.integers(3), style.integers(3)
    spacing = style.uniform(0.15, 0.3, 2)
    page, pen = canvas(32, paper)
    first = int(image.integers(6))
    box = image.uniform((4, 4, 78, 75), (20, 20, 92, 90))
    chart = _Chart(pen, box, palette[first:] + palette[:first], ink, paper, width)
    if kind in ("bar", "line", "area", "scatter", "box plot"):
        for y in np.arange(0, 1, spacing[0]) if lines else ():
            chart.draw.line(chart.at(0, y, 1, y), mixed(paper, ink, 0.3), 2)
        for x in np.arange(0, 1, spacing[1]) if lines == 2 else ():
            chart.draw.line(chart.at(x, 0, x, 1), mixed(paper, ink, 0.3), 2)
        if axes:
            chart.draw.line(chart.at(0, 1, 0, 0, 1, 0, *((1, 1, 0, 1) if axes == 2 else ())), ink, 3)
    _PLOTS[kind](kind, chart, image)
    pixels = reduced(page)
    return as_pixels(pixels + image.normal(0, image.uniform(0, 4), pixels.shape))


def _plot_bars(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    count, gap, is_colourful = int(rng.integers(3, 7)), rng.uniform(0.15, 0.35), rng.random() < 0.3
    for i, height in enumerate(rng.uniform(0.15, 1, count)):
        corners = (i + gap) / count, 0, (i + 1 - gap / 2) / count, height
        chart.bar(corners, chart.palette[i if is_colourful else 0])


def _plot_walks(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    """Lines, or areas on top of each other."""
    walks = np.cumsum(rng.normal(0, 1, (rng.integers(1, 4), rng.integers(6, 20))), 1)
    walks = (walks - walks.min()) / np.ptp(walks)
    if kind == "area":
        walks = np.cumsum(walks + 0.2, 0)[::-1]
    for walk, shade in zip(walks / walks.max(), chart.palette, strict=False):
        points = np.stack((np.linspace(0, 1, len(walk)), walk), 1).ravel()
        if kind == "area":
            chart.draw.polygon(chart.at(*points, 1, 0, 0, 0), shade)
        else:
            chart.draw.line(chart.at(*points), shade, chart.width, "curve")


def _plot_points(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    size = 1.5 + chart.width / 3
    for i in range(int(rng.integers(1, 4))):
        x, y, slope = rng.uniform((0.25, 0.3, -1.2), (0.75, 0.7, 1.2))
        for u, v in rng.normal(0, 0.16, (int(rng.integers(8, 25)), 2)):
            a, b = chart.at(*np.clip((x + u, y + slope * u + v * 0.6), 0.03, 0.97))
            chart.draw.ellipse((a - size, b - size, a + size, b + size), chart.palette[i])


def _plot_matrix(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    rows, columns = (int(n) for n in rng.integers(4, 9, 2))
    wave = np.sin(np.arange(rows)[:, None] * rng.uniform(0.2, 1.2) + np.arange(columns) * rng.uniform(0.2, 1.2))
    values = wave * rng.uniform(0, 1) + rng.normal(0, 0.5, (rows, columns))
    low, high = mixed(chart.palette[0], chart.paper, 0.85), chart.palette[int(rng.integers(2))]
    for (row, column), part in np.ndenumerate((values - values.min()) / np.ptp(values)):
        corners = column / columns, row / rows, (column + 1) / columns, (row + 1) / rows
        chart.bar(corners, mixed(low, high, part))


def _plot_shares(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    """A pie, or a donut."""
    centre, radius = np.array(chart.at(0.5, 0.5)), min(chart.box[2:] - chart.box[:2]) / 2
    shares = rng.uniform(0.15, 1, int(rng.integers(3, 7)))
    ends = np.cumsum(shares / shares.sum()) * 360 + rng.uniform(0, 360)
    box = [*(centre - radius), *(centre + radius)]
    for i, end in enumerate(ends):
        chart.draw.pieslice(box, ends[i - 1], end, chart.palette[i], chart.paper if chart.width > 5 else None, 2)
    if kind == "donut":
        hole = rng.uniform(0.45, 0.7)
        chart.draw.ellipse([*(centre - hole * radius), *(centre + hole * radius)], chart.paper)


def _plot_radar(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    angles = np.linspace(0, 2 * np.pi, int(rng.integers(5, 9)), endpoint=False) - np.pi / 2
    rays = np.stack((np.cos(angles), np.sin(angles)), 1) * min(chart.box[2:] - chart.box[:2]) / 2
    centre = np.array(chart.at(0.5, 0.5))
    for part in (0.5, 1):
        chart.draw.polygon((centre + part * rays).ravel().tolist(), None, mixed(chart.paper, chart.ink, 0.6), 2)
    for ray in rays:
        chart.draw.line([*centre, *(centre + ray)], mixed(chart.paper, chart.ink, 0.6), 2)
    for i in range(int(rng.integers(1, 3))):
        values = rng.uniform(0.3, 1, (len(rays), 1))
        fill = chart.palette[i] if i == 0 and rng.random() < 0.4 else None
        chart.draw.polygon((centre + values * rays).ravel().tolist(), fill, chart.palette[i], chart.width)


def _plot_boxes(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    count, is_colourful = int(rng.integers(3, 6)), rng.random() < 0.3
    for i in range(count):
        x, half = (i + 0.5) / count, 0.3 / count
        low, q1, median, q3, high = np.sort(rng.uniform(0.05, 1, 5)) + np.linspace(-0.04, 0.04, 5)
        chart.draw.line(chart.at(x, low, x, high), chart.ink, 3)
        chart.bar((x - half, q1, x + half, q3), chart.palette[i if is_colourful else 0], chart.ink)
        for y, width in ((low, half / 2), (median, half), (high, half / 2)):
            chart.draw.line(chart.at(x - width, y, x + width, y), chart.ink, 3)


def _plot_tree(kind: str, chart: _Chart, rng: np.random.Generator) -> None:
    tiles = [(0.0, 0.0, 1.0, 1.0)]
    while len(tiles) < 7:
        tiles.sort(key=lambda tile: (tile[2] - tile[0]) * (tile[3] - tile[1]))  # divide the largest
        left, bottom, right, top = tiles.pop()
        cut = rng.uniform(0.3, 0.7)
        if right - left > top - bottom:
            x = left + cut * (right - left)
            tiles += [(left, bottom, x, top), (x, bottom, right, top)]
        else:
            y = bottom + cut * (top - bottom)
            tiles += [(left, bottom, right, y), (left, y, right, top)]
    for i, tile in enumerate(tiles):
        chart.bar(tile, chart.palette[i % 6], chart.paper)


_PLOTS = {
    "bar": _plot_bars, "line": _plot_walks, "area": _plot_walks, "scatter": _plot_points, "heat map": _plot_matrix,
    "pie": _plot_shares, "donut": _plot_shares, "radar": _plot_radar, "box plot": _plot_boxes, "tree map": _plot_tree,
}  # fmt: skip
