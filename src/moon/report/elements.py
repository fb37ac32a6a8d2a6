"""Pieces of a page: sortable tables, pictures, images. All of it is text that loads nothing from outside."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence
from html import escape
from statistics import mean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moon.results import figures


def cell(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> tuple[str, float | None]:
    """The text of a cell and the value it is sorted by."""
    if not values:
        return "-", None
    spread = f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * mean(values):.{digits}f}{spread}", mean(values)


def table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    words: int = 1,
    lower: Iterable[int] = (),
    bold: bool = True,
) -> str:
    """A table that can be sorted; the best number of each column is bold, in the columns of `lower` the smallest."""
    best: dict[int, float] = {}
    for column in range(words, len(headings)):
        values = [row[column][1] for row in rows if isinstance(row[column], tuple) and row[column][1] is not None]
        if bold and len(values) > 1 and headings[column] != "runs":
            best[column] = min(values) if column in lower else max(values)
    head = "".join(
        f'<th scope="col"{" class=word" if i < words else ""}><button type="button">{escape(h)}</button></th>'
        for i, h in enumerate(headings)
    )
    lines = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            text, value = cell if isinstance(cell, tuple) else (cell, None)
            kinds = "word" * (column < words) or "best" * (value is not None and best.get(column) == value)
            data = "" if value is None else f' data-value="{value:.8g}"'
            cells.append(f"<td{f' class={kinds}' if kinds else ''}{data}>{escape(str(text))}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def figure(picture: Any, caption: str) -> str:
    """A picture with its caption, which is also what a screen reader says."""
    shown = figures.svg(picture, escape(caption, quote=True))
    return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"


def png(image: NDArray[np.uint8]) -> str:
    """An image as an address that is the image."""
    data = io.BytesIO()
    Image.fromarray(image if image.shape[2] == 3 else image[..., 0]).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"
