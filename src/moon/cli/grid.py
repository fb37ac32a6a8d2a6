"""Train and score a grid of runs, each exactly once, several at a time, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.cli.arguments import add_data, add_parameters, pair
from moon.cli.unknown_sets import add_unknown_sets, data_facts
from moon.cli.workers import add_workers
from moon.demo import PAPER_DETECTORS

if TYPE_CHECKING:
    from moon.grid import Grid
    from moon.grid.file import GridFile
    from moon.results.collect import Run

EXAMPLES = """
examples:
  moon grid digits --objective cross-entropy moon --sparsity 0.9 0.95 --seed 0 1 2 --epochs 10
  moon grid cifar10 --preset plain control --seed 0 1 2    presets
  moon grid mine --near flowers --far textures    unknown sets for a data set of your own
  moon grid compare.toml --jobs 2                 run the same command again to resume
  moon grid compare.toml --plan                   only show what is done, running and missing
  moon grid compare.toml --per-gpu 4              four runs at a time per GPU
  moon grid compare.toml --ray auto --gpus 0.25   on a Ray cluster, a quarter of a GPU each

compare.toml:
  benchmark = "cifar10"
  sparsity = [0.9, 0.95]
  seed = [0, 1, 2]
  near = ["cifar100", "tin"]                      optional: as --near, and far as --far
  [[runs]]
  objective = ["cross-entropy", "moon"]
  [[runs]]                                        cross-entropy with MOON's rates and vote
  preset = "control"
"""
JSON = "for each run its folder, state and result"


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("what", nargs="+", metavar="BENCHMARK or FILE.toml", help="benchmarks, or a file that describes the grid")
    add_parameters(parser, several=True)
    text = "option of an objective or topology"
    add("--set", type=pair, action="append", default=[], metavar="NAME=VALUE[,VALUE]", help=text)
    add("--out", type=Path, default=Path("runs/grid"), help="folder of the runs (default: %(default)s)")
    text = "detectors to score with, auto (one for each run, chosen by a rule), all or none "
    text += f"(default: {' '.join(PAPER_DETECTORS)})"
    add("--detector", nargs="+", default=list(PAPER_DETECTORS), metavar="NAME", help=text)
    add_unknown_sets(parser)
    add_workers(parser)
    add("--plan", action="store_true", help="only show the state of the runs")
    add_data(parser)


def act(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    from moon.cli.output import Incomplete
    from moon.cli.runner import run_grid, show_states
    from moon.grid import Grid

    described = _described(arguments)
    detectors = _detectors(arguments.detector)
    near, far = tuple(arguments.near) or described.near, tuple(arguments.far) or described.far
    settings = arguments.out, described.recipes, detectors, arguments.retries
    if arguments.plan:
        grid = Grid.of(*settings, near=near, far=far)
        show_states(grid)
        return _facts(grid)
    grid = Grid.plan(*settings, data_facts(arguments.data, near, far), near=near, far=far)
    run_grid(grid, arguments)
    try:
        _show(grid, arguments.out)
    except ValueError as error:
        raise Incomplete(str(error), _facts(grid)) from error
    return _facts(grid)


def _facts(grid: Grid) -> list[dict[str, Any]]:
    """The folder and state of each run, and its result if it is trained."""
    from moon.run.folder import is_trained, load_result

    return [
        {"folder": job.folder, "state": job.state().value} | (load_result(job.folder) if is_trained(job.folder) else {})
        for job in grid.jobs
    ]


def _described(arguments: argparse.Namespace) -> GridFile:
    """The runs that a file or the options describe."""
    from moon.grid.file import GridFile, read_file
    from moon.recipe import PARAMETERS
    from moon.recipe.expand import expand

    files = [name for name in arguments.what if name.endswith(".toml")]
    axes: dict[str, Any] = {name: getattr(arguments, name, None) for name in PARAMETERS if name != "benchmark"}
    axes = {name: values for name, values in axes.items() if values}
    if files:
        if len(arguments.what) > 1 or axes or arguments.set:
            raise ValueError(f"{files[0]} describes the whole grid; give no benchmark, axis or --set in addition")
        return read_file(arguments.data, Path(files[0]))
    options = {name: values.split(",") for name, values in arguments.set}
    return GridFile(expand(arguments.data, {"benchmark": arguments.what} | axes | {"set": options}), (), ())


def _detectors(names: Sequence[str]) -> list[str]:
    from moon.recipe import table
    from moon.score.auto import check_names

    if list(names) == ["none"]:
        return []
    if list(names) == ["all"]:
        return list(table("detector"))
    return check_names(names)  # fails before anything is trained


def _show(grid: Grid, out: Path) -> None:
    """Print the table of all finished runs; raise a ValueError if some are not done.

    The table is of this grid; results.csv is of all runs in the folder, so that a second grid there loses no numbers. A
    run has the same label in both: one that distinguishes it from all others in the folder.
    """
    from moon.cli.output import printable, show_group
    from moon.cli.runner import check_done
    from moon.files import write_text
    from moon.grid import State
    from moon.recipe.labels import labels
    from moon.results.choices import describe_choices
    from moon.results.latex import group_as_latex
    from moon.results.tables import csv_text, summary_table, tidy
    from moon.score.files import read_summary
    from moon.suggest import counted

    done = [job for job in grid.jobs if job.state() is State.DONE]
    scored = [(job.recipe, found) for job in done if (found := read_summary(job.folder)) is not None]
    if scored:
        others, left_out = _other_runs(grid)
        names = labels([*(job.recipe for job in grid.jobs), *(run.recipe for run in others)])
        methods: dict[str, list] = {}
        for recipe, found in scored:
            methods.setdefault(names[recipe.name], []).append(found)
        show_group(summary_table(methods))
        for line in describe_choices(methods):
            print(printable(f"auto: {line}"))
        scored += [(run.recipe, run.summary) for run in others]
        table, latex = out / "results.csv", out / "results.tex"
        write_text(
            table, csv_text([row for recipe, found in scored for row in tidy(recipe, names[recipe.name], found)])
        )
        write_text(latex, group_as_latex(summary_table(methods, with_fpr=True), "tab:results"))
        print(f"every number of every run in {out}: {table}; the table above as LaTeX, with FPR-95: {latex}")
        if others:
            print(
                f"{table} also has {counted(len(others), 'run')} of other grids in {out}, which the table does not show"
            )
        for line in left_out:
            print(f"left out of {table}: {printable(line)}")
    check_done(grid)
    print(f"{'the run is' if len(grid.jobs) == 1 else f'all {len(grid.jobs)} runs are'} done: {out}")


def _other_runs(grid: Grid) -> tuple[list[Run], list[str]]:
    """The finished and scored runs in the grid's folder that are not part of it, and a line for each of the others."""
    from moon.results.collect import read_runs, run_folders

    names, own = {job.recipe.name for job in grid.jobs}, {job.folder.name for job in grid.jobs}
    found, left_out = read_runs(folder for folder in run_folders(grid.folder) if folder.name not in own)
    others: list[Run] = []
    for run in found:
        if run.recipe.name in names:
            left_out.append(f"{run.folder.name}: another run in the folder has the same recipe")
        else:
            names.add(run.recipe.name)
            others.append(run)
    return others, left_out
