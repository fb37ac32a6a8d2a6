"""The content of a page, as plain data for the templates: tables with their best numbers, figures and images."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from statistics import mean
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moon.results.format import mean_and_deviation
from moon.results.plotting import svg

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: What it shows.
        value: The number it is sorted by; None sorts by the text.
        is_best: Whether it is the best number of its column.
    """

    text: str
    value: float | None = None
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """A table that readers can sort.

    Attributes:
        headings: The column headings.
        rows: The cells, row by row.
        text_columns: How many columns on the left contain text instead of numbers.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    text_columns: int = 1


@dataclass(frozen=True)
class Picture:
    """A figure as an inline `<svg>` element, with its caption, and the name of its PDF file."""

    name: str
    figure: Figure
    svg: Markup  # not escaped again
    caption: str


def number_cell(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> Cell:
    """Return a cell with mean and standard deviation, sorted by the mean; without values it shows "-"."""
    return Cell(mean_and_deviation(values, digits, scale), mean(values) if values else None)


def make_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Cell | str]],
    text_columns: int = 1,
    *,
    lower_is_better: Collection[int] = (),
    unranked: Collection[int] = (),
    mark_best: bool = True,
) -> Table:
    """Return a table with the best number of each column marked, except in those that are unranked.

    Example:
        >>> from moon.report.content import Cell, make_table
        >>> rows = [["plain", Cell("0.1", 0.1)], ["MOON", Cell("0.2", 0.2)]]
        >>> table = make_table(["method", "ECE"], rows, lower_is_better=[1])
        >>> [row[1].is_best for row in table.rows]
        [True, False]
    """
    cells = [[cell if isinstance(cell, Cell) else Cell(cell) for cell in row] for row in rows]
    for column in range(text_columns, len(headings)) if mark_best else ():
        values = [value for row in cells if (value := row[column].value) is not None]
        if column in unranked or len(values) < 2:
            continue
        best = min(values) if column in lower_is_better else max(values)
        for row in cells:
            row[column] = replace(row[column], is_best=row[column].value == best)
    return Table(headings, cells, text_columns)


def picture(name: str, figure: Figure, caption: str) -> Picture:
    """Return a figure for a page; the caption is also what screen readers say."""
    from markupsafe import Markup  # comes with jinja2, an extra

    return Picture(name, figure, Markup(svg(figure, caption)), caption)


def png_uri(image: NDArray[np.uint8]) -> str:
    """Return an image (height, width, 1 or 3) as a `data:` URI with a PNG file in it."""
    data = io.BytesIO()
    Image.fromarray(image if image.shape[2] == 3 else image[..., 0]).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
