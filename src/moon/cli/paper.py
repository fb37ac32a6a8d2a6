"""Reproduce the paper's evaluation: run what each table and figure needs, and show our numbers next to the paper's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from moon.cli.arguments import add_data, whole
from moon.cli.unknown_sets import data_facts
from moon.cli.workers import add_workers
from moon.paper.spec import EXTRAS, FULL, MINI, OURS, Item, Scale

if TYPE_CHECKING:
    from moon.recipe import Recipe

EXAMPLES = """
examples:
  moon paper list                                  every table and figure, and how much of it is done
  moon paper plan table1                           which runs it needs, and their state
  moon paper run table1 figure4 --per-gpu 4        run what is missing, then show it
  moon paper show table1                           our numbers next to the paper's; also as Markdown, CSV and LaTeX
  moon paper run table1 --also mine                with an objective, preset or topology of your own
  moon paper run mini                              a reduced version of everything, on embedded images
  moon paper run all --benchmark cifar10=cifar10-part --seeds 3
"""


def describe(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "plan", "run", "show"), help="see the examples below")
    add(
        "what",
        nargs="*",
        metavar="ID",
        help=f"table1 ... table17, figure1 ... figure12, {', '.join((*OURS, *EXTRAS))}, all, mini",
    )
    add("--mini", action="store_true", help="the reduced version, on the embedded images")
    add("--out", type=Path, help="folder of the runs (default: runs/paper, or runs/paper-mini)")
    add("--benchmark", nargs="+", default=[], metavar="DATA=NAME", help="the benchmark to use for the paper's data")
    add("--seeds", type=whole, help=f"runs of each network (default: {FULL.seeds}, mini {MINI.seeds})")
    add("--other-seeds", type=whole, help="runs of networks other than RigL and MOON + RigL (default: as --seeds)")
    add("--epochs", type=whole, help=f"epochs per run (default: {FULL.epochs}, mini {MINI.epochs})")
    add("--precision", help="precision of training, float32 or bfloat16 (default: float32)")
    text = "also show these methods in the tables: presets and objectives, trained like MOON, and topologies"
    add("--also", nargs="+", default=[], metavar="NAME", help=text)
    add("--all-detectors", action="store_true", help="score the runs with every detector, not only those of the tables")
    add_workers(parser)
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    from moon.cli.paper_tables import list_items, show, why_nothing
    from moon.paper.items import choose, with_method

    keys = arguments.what
    if "mini" in keys:
        arguments.mini = True
    if arguments.action != "list" and not keys:
        raise ValueError(f"{arguments.action} needs the ID of a table or figure; moon paper list shows them")
    extras = list(EXTRAS) if {"all", "mini"} & {*keys} else [key for key in keys if key in EXTRAS]
    items = choose(key for key in keys if key not in EXTRAS)
    for name in arguments.also:
        items = with_method(items, name)
    scale = _scale(arguments)
    folder = arguments.out or Path("runs/paper-mini" if arguments.mini else "runs/paper")
    if arguments.action == "list":
        list_items(arguments.data, scale, folder)
    elif arguments.action == "plan":
        _plan(arguments, items, extras, scale, folder)
    elif arguments.action == "run":
        _run(arguments, items, extras, scale, folder)
    elif not show(items, extras, scale, arguments.data, folder) and items:
        raise ValueError(why_nothing(items, scale, folder))


def _plan(
    arguments: argparse.Namespace, items: Sequence[Item], extras: Sequence[str], scale: Scale, folder: Path
) -> None:
    """Print the state of the runs that some items need."""
    from moon.cli.runner import show_states
    from moon.grid import Grid

    if not items:
        print(f"{', '.join(extras)}: no runs needed")
        return
    wanted = _wanted(arguments, items, scale)
    show_states(Grid.of(folder, wanted, wanted))


def _run(
    arguments: argparse.Namespace, items: Sequence[Item], extras: Sequence[str], scale: Scale, folder: Path
) -> None:
    """Run what some items need and is missing, then show them."""
    from moon.cli.paper_tables import show
    from moon.cli.runner import check_done, run_grid
    from moon.grid import Grid

    grid = None
    if items:
        wanted = _wanted(arguments, items, scale)
        grid = Grid.plan(folder, wanted, wanted, arguments.retries, data_facts(arguments.data))
        run_grid(grid, arguments)
    show(items, extras, scale, arguments.data, folder)
    if grid is not None:
        check_done(grid)


def _wanted(arguments: argparse.Namespace, items: Sequence[Item], scale: Scale) -> dict[Recipe, list[str]]:
    """The detectors to score each run of some items with, by recipe; says which data are missing."""
    from moon.data import DataError
    from moon.paper.recipes import missing_data, needed_runs
    from moon.recipe import table

    absent = missing_data(arguments.data, items, scale)
    wanted = needed_runs(arguments.data, items, scale, absent if arguments.action == "run" else ())
    if not wanted:
        raise DataError(
            f"{arguments.data}: none of the data was found ({', '.join(absent.values())}); moon data shows "
            "what exists, --data or MOON_DATA sets the data root"
        )
    for data, name in absent.items():
        print(f"{name} is not under {arguments.data}: the numbers of {data} will be missing")
    return {recipe: list(table("detector")) for recipe in wanted} if arguments.all_detectors else wanted


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = (MINI if arguments.mini else FULL).with_benchmarks(arguments.benchmark)
    if arguments.seeds:
        scale = replace(scale, seeds=arguments.seeds, other_seeds=None)
    if arguments.other_seeds:
        scale = replace(scale, other_seeds=arguments.other_seeds)
    settings = dict(scale.settings) | ({"precision": arguments.precision} if arguments.precision else {})
    return replace(scale, epochs=arguments.epochs or scale.epochs, settings=settings)
