"""What the terminal shows: log messages of the library, characters that it lacks, tables that are too wide for it."""

from __future__ import annotations

import codecs
import logging
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

_MAX_SHOWN = 4000  # characters of one message
_ASCII = {
    "✓": "+", "✗": "-", "±": "+-", "×": "x", "…": "...", "–": "-", "—": "-", "→": "->", "≤": "<=", "≥": ">=",
    "’": "'", "“": '"', "”": '"',
}  # fmt: skip


def _replace(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    return "".join(_ASCII.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def replace_unprintable() -> None:
    """Print characters that the terminal's encoding lacks as ASCII, instead of raising an error."""
    codecs.register_error("moon-ascii", _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="moon-ascii")


def printable(text: object) -> str:
    """Text that may come from files or servers, for a terminal.

    Characters that control a terminal or change the order of a line are shown as escapes, such as \\x1b, and so are
    line breaks: a file name cannot add a line that looks like one of ours. Very long text is cut.
    """
    shown = str(text)
    if len(shown) > _MAX_SHOWN:
        shown = f"{shown[:_MAX_SHOWN]}... ({len(shown) - _MAX_SHOWN:,} more characters)"
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def plain_cells(table: Table) -> None:
    """Make the texts of a table printable; brackets in them are then not markup."""
    from rich.text import Text

    def plain(cell: object) -> object:
        return Text("\n".join(map(printable, cell.split("\n")))) if isinstance(cell, str) else cell

    table.title = plain(table.title)  # pyright: ignore[reportAttributeAccessIssue]
    for column in table.columns:
        column.header = plain(column.header)  # pyright: ignore[reportAttributeAccessIssue]
        column._cells = [plain(cell) for cell in column._cells]  # pyright: ignore[reportAttributeAccessIssue]


class Incomplete(ValueError):
    """Some of several runs failed; `value` is what is known about all of them, which is printed with `--json`."""

    def __init__(self, text: str, value: object) -> None:
        super().__init__(text)
        self.value = value


class _Printer(logging.Handler):
    """Prints what the library logs, above a progress bar if there is one; a warning is one line on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno >= logging.WARNING:
            print(f"{record.levelname.lower()}: {printable(' '.join(message.split()))}", file=sys.stderr)
            return
        from rich import get_console

        get_console().print(printable(message), highlight=False, markup=False, soft_wrap=True)


@contextmanager
def printed_logs() -> Iterator[None]:
    """Context in which messages of the library are printed."""
    logger, printer = logging.getLogger("moon"), _Printer()
    level = logger.level
    logger.addHandler(printer)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(printer)
        logger.setLevel(level)


def readable_size(count: int) -> str:
    """A number of bytes to three digits."""
    return f"{count / 1e6:.3g} MB" if count >= 1e6 else f"{count / 1e3:.3g} kB"


def _line(text: object) -> str:
    """A heading or cell of several lines as one line."""
    return " ".join(str(text).split())


def show_table(table: Table) -> None:
    """Print a table; if the terminal is too narrow for its columns, as one `heading: value` line per cell.

    Columns that must not be cut, such as numbers, are declared with `no_wrap=True`.
    """
    from rich.console import Console
    from rich.measure import Measurement

    console = Console()
    wide = console.options.update(width=10_000)
    for column in table.columns:
        if column.no_wrap:  # rich would cut it between two words
            column.min_width = max(
                Measurement.get(console, wide, cell).maximum for cell in (column.header, *column.cells)
            )
    if Measurement.get(console, wide, table).minimum <= console.width:
        console.print(table)
        return
    if table.title:
        console.print(table.title, style="bold", highlight=False)
    columns = [(column.header, list(column.cells)) for column in table.columns]
    for row in range(table.row_count):
        console.print()
        for heading, cells in columns:
            if cell := cells[row]:
                is_markup = isinstance(cell, str)
                console.print(f"{_line(heading)}: {_line(cell)}", highlight=False, markup=is_markup)
    console.print()


def show_group(group: Group) -> None:
    """Print texts and tables; a table that is too wide for the terminal is printed in parts, or in lines."""
    from rich.console import Console
    from rich.measure import Measurement
    from rich.table import Table

    from moon.results.layout import fit_to_width

    console = Console()
    for part in group.renderables:
        if not isinstance(part, Table):
            console.print(printable(part) if isinstance(part, str) else part, markup=False)
            continue
        plain_cells(part)
        parts = [part]
        if Measurement.get(console, console.options.update(width=10_000), part).maximum > console.width:
            parts = fit_to_width(part, console.width)
            if len(parts) != 1:
                _break_spreads(part)
                parts = fit_to_width(part, console.width)
        for each in parts:
            console.print(each)
        if not parts:
            show_table(part)


def _break_spreads(table: Table) -> None:
    """Put each ± on a line of its own, in all columns alike, so that the lines of a row stay beside each other."""
    from rich.text import Text

    for column in table.columns:
        column._cells = [Text(str(cell).replace(" ±", "\n±")) for cell in column._cells]


def new_table(title: str, *headings: str, texts: Collection[str] = ()) -> Table:
    """A table of numbers, which are never cut; the columns named in `texts` are aligned to the left."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    for heading in headings:
        made.add_column(heading, no_wrap=True, justify="left" if heading in texts else "right")
    return made
