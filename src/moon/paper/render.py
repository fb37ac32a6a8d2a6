"""Show a table of the paper in a terminal, or return it as Markdown, CSV or LaTeX."""

from __future__ import annotations

from dataclasses import asdict
from statistics import mean, stdev
from typing import Any

from rich.console import Group
from rich.text import Text

from moon.metrics import interval
from moon.paper.number import Number
from moon.paper.table import PaperTable
from moon.results.latex import escape, latex
from moon.results.layout import compact_table, fit_to_width
from moon.results.tables import csv_text

_STATISTICS = ("mean", "deviation", "low", "high", "paper_mean", "paper_deviation", "difference")


def to_terminal(table: PaperTable, width: int = 80) -> Group:
    """Lay a table out for a terminal; one that does not fit is transposed or split, without breaking words."""
    columns, rows = table.grid()
    is_wide = sum(max(len(column), 8) + 2 for column in columns) > width - 14
    if is_wide and len(rows) < len(columns):  # transpose
        transposed = [(column, [numbers[i] for _, numbers in rows]) for i, column in enumerate(columns)]
        columns, rows = [label for label, _ in rows], transposed
    made = compact_table()
    made.add_column("")
    for column in columns:
        made.add_column(column, justify="right")
    for label, numbers in rows:
        made.add_row(label, *("" if n is None else _stacked_cell(table, n) for n in numbers))
    return Group(
        Text(table.title), *(fit_to_width(made, width) or [made]), *map(Text, [*table.notes(), *table.claim_lines()])
    )


def _stacked_cell(table: PaperTable, number: Number) -> str:
    """Mean, deviation, the paper's mean and the difference on one line each, so that columns stay narrow."""
    our_mean, _, deviation = number.text().partition(" ± ")
    lines = [f"{our_mean}{table.mark(number)}", f"± {deviation}" if deviation else ""]
    if number.paper is not None:
        lines += [f"[dim]{part}[/]" for part in number.paper_text().removeprefix("paper ").split(", ")]
    return "\n".join(line for line in lines if line)


def to_markdown(table: PaperTable) -> str:
    """Return a table as Markdown, with its notes and claims."""
    columns, rows = table.grid()
    lines = [f"## {table.title}", "", f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for label, numbers in rows:
        cells = ["" if n is None else f"{n.text()}{table.mark(n)}<br>{n.paper_text()}" for n in numbers]
        lines.append(f"| {label} | {' | '.join(cell.removesuffix('<br>') for cell in cells)} |")
    lines += ["", *(f"{note}\n" for note in table.notes()), *(f"- {line}" for line in table.claim_lines())]
    return "\n".join(lines).rstrip() + "\n"


def to_csv(table: PaperTable) -> str:
    """Return all numbers of a table as CSV, one line per number, with intervals, the paper's numbers and tests."""
    return csv_text(
        [
            {"table": table.item.key}
            | asdict(number.measurement)
            | {"set": number.set, "n": len(number.values)}
            | _statistics(number)
            | _tests(table, number)
            for number in table.numbers
        ]
    )


def _statistics(number: Number) -> dict[str, Any]:
    """Mean, deviation, interval, and the difference from the paper."""
    values = number.values
    row: dict[str, Any] = dict.fromkeys(_STATISTICS, "")
    if values:
        row["mean"] = round(mean(values), 6)
    if len(values) > 1:
        low, high = interval(values)
        row |= {"deviation": round(stdev(values), 6), "low": round(low, 6), "high": round(high, 6)}
    if number.paper is not None:
        row |= {"paper_mean": number.paper[0], "paper_deviation": number.paper[1] or ""}
        if values:
            row["difference"] = round(mean(values) - number.paper[0], 6)
    return row


def _tests(table: PaperTable, number: Number) -> dict[str, str]:
    """What a number is compared with, and the results."""
    claims = [claim for claim in table.claims if claim.number is number]
    found = [claim.comparison for claim in claims]
    return {
        "against": "; ".join(claim.against.measurement.training for claim in claims),
        "p": "; ".join("" if comparison.p != comparison.p else f"{comparison.p:.6f}" for comparison in found),
        "verdict": "; ".join(comparison.verdict for comparison in found),
    }


def to_latex(table: PaperTable) -> str:
    """Return a table as LaTeX for the package booktabs; the paper's numbers are in italics below ours."""
    columns, grid = table.grid()
    rows = [["", *map(escape, columns)]]
    for label, numbers in grid:
        cells = ["" if n is None else escape(f"{n.text()}{table.mark(n)}") for n in numbers]
        rows.append([escape(label), *cells])
        if any(n is not None and n.paper for n in numbers):
            rows.append(["", *("" if n is None else rf"\textit{{{escape(n.paper_text())}}}" for n in numbers)])
    caption = f"{escape(table.item.title)}. {escape(' '.join(table.notes()))}"
    return latex(caption, f"tab:{table.item.key}", "l" + "r" * len(columns), rows)
