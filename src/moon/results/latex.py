"""Tables as LaTeX, for the package booktabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

_ESCAPED = str.maketrans({
    "\\": r"\textbackslash{}", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#", "$": r"\$", "{": r"\{", "}": r"\}",
    "^": r"\^{}", "~": r"\~{}", "±": r"$\pm$", "▲": r"$\uparrow$", "▼": r"$\downarrow$",
})  # fmt: skip


def escape(text: str) -> str:
    """Escape a text for LaTeX."""
    return text.translate(_ESCAPED)


def latex(caption: str, label: str, alignment: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a table as LaTeX for the package booktabs.

    Caption and cells are escaped already; the first row has the headings, and an empty row is a rule.
    """
    headings, *others = rows
    lines = [" & ".join(cells) + r" \\" if cells else r"\midrule" for cells in (headings, (), *others)]
    named = [rf"\caption{{{caption}}}", rf"\label{{{label}}}", rf"\begin{{tabular}}{{{alignment}}}"]
    return (
        "\n".join([r"\begin{table}", *named, r"\toprule", *lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"])
        + "\n"
    )


def group_as_latex(group: Group, label: str) -> str:
    """Return a table that was made for the terminal, after its caption, as LaTeX with the same rows and sections."""
    caption, table, *_ = group.renderables
    assert isinstance(table, Table)
    alignment = "".join("r" if column.justify == "right" else "l" for column in table.columns)
    by_column = [[escape(_plain(cell)) for cell in (column.header, *column.cells)] for column in table.columns]
    headings, *others = map(list, zip(*by_column, strict=True))
    rows = [headings]
    for cells, row in zip(others, table.rows, strict=True):
        rows += [cells, []] if row.end_section else [cells]
    return latex(escape(str(caption)), label, alignment, rows if rows[-1] else rows[:-1])


def _plain(cell: object) -> str:
    """The text of a cell on one line, without rich's markup."""
    return " ".join(Text.from_markup(str(cell)).plain.split())
