"""Lay out tables for a terminal of a given width."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

_GAP = 2  # blanks between columns


def compact_table() -> Table:
    """Return an empty table that is narrow enough for 80 columns."""
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def fit_to_width(table: Table, width: int) -> list[Table]:
    """Lay out a table without breaking words or numbers; numbers that do not fit go into further tables.

    Columns that are aligned to the right contain numbers. The others are labels, which every table repeats; they and
    the headings are broken between words and after marks such as `-`. If the terminal is too narrow for a column of
    numbers, there are no tables.

    Example:
        >>> from moon.results.layout import compact_table, fit_to_width
        >>> table = compact_table()
        >>> table.add_column("method")
        >>> for name in ("near", "far"):
        ...     table.add_column(name, justify="right")
        >>> table.add_row("moon-logitnorm", "90.1 / 47.2", "96.2 / 19.5")
        >>> [[column.header for column in each.columns] for each in fit_to_width(table, 24)]
        [['method', 'near'], ['method', 'far']]
        >>> next(fit_to_width(table, 24)[0].columns[0].cells).plain.split("\\n")
        ['moon-', 'logitnorm']
    """
    labels = [column for column in table.columns if column.justify != "right"]
    numbers = [column for column in table.columns if column.justify == "right"]
    widths = [_longest(each for text in _texts(column) for each in _pieces(text)) for column in labels]
    minimum = [
        max(
            _longest(_pieces(_plain(column.header))),
            _longest(line for text in _texts(column)[1:] for line in text.split("\n")),
        )
        for column in numbers
    ]
    available = width - sum(widths) - _GAP * len(widths)
    if not numbers or max(minimum) + _GAP > available:
        return []
    tables = []
    for chosen, surplus in _distribute(minimum, available):
        made, cells = compact_table(), []
        shown = zip(labels + [numbers[i] for i in chosen], widths + [minimum[i] for i in chosen], strict=True)
        for column, least in shown:
            extra = min(surplus, _longest(line for text in _texts(column) for line in text.split("\n")) - least)
            surplus -= extra
            heading, *rest = (_wrap(cell, least + extra) for cell in (column.header, *column.cells))
            made.add_column(heading, justify=column.justify, style=column.style, width=least + extra)
            cells.append(rest)
        for row, in_row in zip(table.rows, zip(*cells, strict=True), strict=True):
            made.add_row(*in_row, end_section=row.end_section)
        tables.append(made)
    return tables


def _plain(cell: RenderableType) -> str:
    return Text.from_markup(cell).plain if isinstance(cell, str) else str(cell)


def _texts(column: Column) -> list[str]:
    """The heading and the cells, without markup."""
    return [_plain(cell) for cell in (column.header, *column.cells)]


def _pieces(text: str) -> list[str]:
    """The parts of a label between which a line may end, with the blanks after them."""
    return re.split(r"(?<=[-+=:/,])(?=\w)|(?<=\s)(?=\S)", text)


def _wrap(cell: RenderableType, width: int) -> RenderableType:
    """A cell whose lines are broken between the pieces of its text; one with markup, or narrow enough, as it is."""
    text = _plain(cell)
    if _longest(text.split("\n")) <= width:
        return cell
    lines = [""]
    for piece in _pieces(" ".join(text.split())):
        if lines[-1] and len((lines[-1] + piece).rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return Text("\n".join(line.rstrip() for line in lines))


def _longest(words: Iterable[str]) -> int:
    return max((len(word.rstrip()) for word in words), default=0)


def _distribute(widths: Sequence[int], available: int) -> list[tuple[list[int], int]]:
    """Assign columns to tables: for each table its columns, and the width that remains."""
    tables: list[tuple[list[int], int]] = []
    for i, width in enumerate(widths):
        if not tables or tables[-1][1] < width + _GAP:
            tables.append(([], available))
        chosen, remaining = tables.pop()
        tables.append(([*chosen, i], remaining - width - _GAP))
    return tables
