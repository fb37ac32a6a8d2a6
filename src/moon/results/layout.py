"""Lay out tables for a terminal of a given width."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

_GAP = 2  # blanks between columns


def compact_table() -> Table:
    """Return an empty table that is narrow enough for 80 columns."""
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def fit_to_width(
    labels: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]], width: int
) -> list[Table]:
    """Lay out labelled rows without breaking words; columns that do not fit go into further tables.

    Args:
        labels: One label per row.
        columns: The column headings.
        cells: The text of every cell, row by row; it may have several lines and rich's markup.
        width: Width of the terminal.

    Returns:
        Tables to be printed one below the other.

    Example:
        >>> from moon.results.layout import fit_to_width
        >>> tables = fit_to_width(["plain", "MOON"], ["near AUROC", "far AUROC"], [["80.0", "90.0"]] * 2, width=20)
        >>> [[column.header for column in table.columns] for table in tables]
        [['', 'near AUROC'], ['', 'far AUROC']]
    """
    minimum = [_longest([*column.split(), *_lines(row[i] for row in cells)]) for i, column in enumerate(columns)]
    longest_word = _longest(word for label in labels for word in label.split())
    label_width = min(_longest(labels), max(width // 4, longest_word))
    tables = []
    for chosen, surplus in _distribute(minimum, width - label_width - _GAP):
        table = compact_table()
        table.add_column("", width=label_width)
        for position, i in enumerate(chosen):  # share the surplus among long headings
            extra = min(surplus // (len(chosen) - position), max(len(columns[i]) - minimum[i], 0))
            surplus -= extra
            table.add_column(columns[i], justify="right", width=minimum[i] + extra)
        for label, row in zip(labels, cells, strict=True):
            table.add_row(label, *(row[i] for i in chosen))
        tables.append(table)
    return tables


def _longest(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _lines(cells: Iterable[str]) -> list[str]:
    """The lines of all cells, without markup."""
    return [line for cell in cells for line in Text.from_markup(cell).plain.split("\n")]


def _distribute(widths: Sequence[int], available: int) -> list[tuple[list[int], int]]:
    """Assign columns to tables: for each table its columns, and the width that remains."""
    tables: list[tuple[list[int], int]] = []
    for i, width in enumerate(widths):
        if not tables or tables[-1][1] < width + _GAP:
            tables.append(([], available))
        chosen, remaining = tables.pop()
        tables.append(([*chosen, i], remaining - width - _GAP))
    return tables
