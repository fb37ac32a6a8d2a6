"""`moon bench small`: what packed files accept on the suite of small data."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from moon.cli.arguments import whole

HELP = """
examples:
  moon bench small                                       the default of small data, MOON and plain; 6 sets, seed 0
  moon bench small --half test --seed 0 1 2 --workers 2  as in docs/results/small.md

Choose recipes and detectors with --half choosing; --half test is for what was chosen.
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--half", choices=("choosing", "test", "all"), default="choosing", help="which sets (default: %(default)s)")
    add("--training", nargs="+", default=["small", "moon", "plain"], metavar="NAME", help="small, moon, plain")
    add("--seed", nargs="+", type=int, default=[0], help="seeds (default: 0)")
    add("--runs", type=Path, default=Path("runs/small"), metavar="DIR", help="where runs are kept (%(default)s)")
    add("--workers", type=whole, default=1, help="runs at the same time (default: %(default)s)")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    from moon.cli.output import show_table
    from moon.cli.screen import tracked
    from moon.suite import TRAININGS, benchmarks_of, measure, summary

    if unknown := [name for name in arguments.training if name not in TRAININGS]:
        raise ValueError(f"unknown training '{unknown[0]}'; choose from: {', '.join(TRAININGS)}")
    names = benchmarks_of(arguments.half)
    jobs = len(names) * len(arguments.seed) * len(arguments.training)
    found = iter(measure(names, arguments.training, arguments.seed, arguments.runs, arguments.workers))
    results = [next(found) for _ in tracked([str(number) for number in range(jobs)], "training and packing")]
    results.sort(key=lambda r: (r["benchmark"], r["training"], r["seed"]))
    rows = summary(results)
    show_table(_table(rows, arguments.half))
    return {"half": arguments.half, "seeds": arguments.seed, "summary": rows, "results": results}


def _table(rows: list[dict[str, Any]], half: str) -> Any:
    from rich import box
    from rich.table import Table

    title = f"Share of unknown images accepted ({half} half; thresholds accept 95% of known validation images)"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 2, 0, 0))
    for heading in ("training", "detector"):
        table.add_column(heading, no_wrap=True)
    for heading in ("near", "far", "worst far set", "known", "accuracy", "CPU s"):
        table.add_column(heading, justify="right")
    for row in rows:
        shares = [f"{row[key]:.1%}" for key in ("near", "far", "worst far", "known", "accuracy")]
        table.add_row(row["training"], row["detector"], *shares, f"{row['cpu seconds']:.0f}")
    return table
