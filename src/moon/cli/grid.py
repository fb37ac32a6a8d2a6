"""Do every run of a grid exactly once, several at a time, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from moon.cli.arguments import add_data
from moon.cli.runner import add_workers, check_done, do, facts_of, standing
from moon.demo import DETECTORS
from moon.files import write_text
from moon.grid.grid import Grid, State
from moon.recipe.build import TABLES, pick
from moon.recipe.expand import AXES, labels, read_file, recipes
from moon.recipe.recipe import Recipe
from moon.results.tables import csv_text, summary_table, tidy
from moon.score.score import read_summary

EXAMPLES = """
examples:
  moon grid digits --objective cross-entropy moon --sparsity 0.9 0.95 --seed 0 1 2 --epochs 10
  moon grid cifar10 --preset plain control --seed 0 1 2    trainings that have a name
  moon grid compare.toml --jobs 2              the same command again goes on where it was stopped
  moon grid compare.toml --plan                only shows what is done, running and missing
  moon grid compare.toml --per-gpu 4           four runs at a time on each GPU
  moon grid compare.toml --ray auto --gpus 0.25   on a Ray cluster, a quarter of a GPU each

compare.toml:
  benchmark = "cifar10"
  sparsity = [0.9, 0.95]
  seed = [0, 1, 2]
  [[runs]]
  objective = ["cross-entropy", "moon"]
  [[runs]]                                     plain loss with MOON's rates and vote
  preset = "control"
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="+", metavar="BENCHMARK or FILE.toml", help="benchmarks, or a file that says all of it")
    for word, (_, kind) in AXES.items():
        if word != "benchmark":
            add(f"--{word.replace('_', '-')}", nargs="+", type=kind, help="as in moon train; several make an axis")
    add("--set", action="append", default=[], metavar="NAME=VALUE[,VALUE]", help="an option of the objectives")
    add("--out", type=Path, default=Path("runs/grid"), help="folder of the runs (default: %(default)s)")
    add("--detector", nargs="+", default=list(DETECTORS), metavar="NAME", help="to score with; all, or none")
    add_workers(parser)
    add("--plan", action="store_true", help="only show how the runs stand")
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    wanted = _recipes(arguments)
    detectors = _detectors(arguments.detector)
    if arguments.plan:
        Console().print(standing(Grid.of(arguments.out, wanted, detectors)))
        return
    grid = Grid.plan(arguments.out, wanted, detectors, arguments.retries, facts_of(arguments.data))
    do(grid, arguments)
    _show(grid, arguments.out)


def _recipes(arguments: argparse.Namespace) -> list[Recipe]:
    files = [word for word in arguments.what if word.endswith(".toml")]
    given = {word: getattr(arguments, word) for word in AXES if word != "benchmark" and getattr(arguments, word)}
    if files:
        if len(arguments.what) > 1 or given or arguments.set:
            raise ValueError(f"{files[0]} says all of the grid; give no benchmark, axis or --set beside it")
        return read_file(arguments.data, Path(files[0]))
    options: dict[str, Any] = {}
    for item in arguments.set:
        key, equals, value = item.partition("=")
        if not (key and equals and value):
            raise ValueError(f"--set takes NAME=VALUE, not '{item}'")
        options[key] = value.split(",")
    return recipes(arguments.data, {"benchmark": arguments.what} | given | {"set": options})


def _detectors(names: Sequence[str]) -> list[str]:
    if list(names) == ["none"]:
        return []
    if list(names) == ["all"]:
        return list(TABLES["detector"])
    for name in names:
        pick(TABLES["detector"], name.partition(":")[0], "detector")
    return list(dict.fromkeys(names))


def _show(grid: Grid, out: Path) -> None:
    """The table over all that is done, and what is not."""
    methods: dict[str, list] = {}
    names = labels([job.recipe for job in grid.jobs])
    rows = []
    for job in grid.jobs:
        if job.state() is State.DONE and (found := read_summary(job.folder)) is not None:
            methods.setdefault(names[job.recipe.name], []).append(found)
            rows += tidy(job.recipe, names[job.recipe.name], found)
    if methods:
        Console().print(summary_table(methods))
        path = out / "results.csv"
        write_text(path, csv_text(rows))
        print(f"every number of every run: {path}")
    check_done(grid)
    print(f"all {len(grid.jobs)} runs are done: {out}")
