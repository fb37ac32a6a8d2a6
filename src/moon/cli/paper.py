"""Reproduce the paper's evaluation: run what each table and figure needs, and show our numbers next to the paper's."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from moon.cli.arguments import add_data, whole
from moon.cli.runner import add_workers, check_done, data_facts, run_grid, state_table
from moon.cli.screen import tracked
from moon.data import DataError
from moon.files import write_json, write_text
from moon.grid import Grid, State
from moon.paper import items as paper_items, recipes as paper, theory, theory_figure
from moon.paper.flops import paper_flops
from moon.paper.items import EXTRAS
from moon.paper.render import to_csv, to_latex, to_markdown, to_terminal
from moon.paper.spec import FULL, MINI, Item, Scale
from moon.paper.table import PaperTable
from moon.recipe import table

EXAMPLES = """
examples:
  moon paper list                                  every table and figure, and how much of it is done
  moon paper plan table1                           which runs it needs, and their state
  moon paper run table1 figure4 --per-gpu 4        run what is missing, then show it
  moon paper show table1                           our numbers next to the paper's; also as Markdown, CSV and LaTeX
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
        help=f"table1 ... table17, figure1 ... figure12, {', '.join(paper_items.OURS)}, flops, theory, all, mini",
    )
    add("--mini", action="store_true", help="the reduced version, on the embedded images")
    add("--out", type=Path, help="folder of the runs (default: runs/paper, or runs/paper-mini)")
    add("--benchmark", nargs="+", default=[], metavar="DATA=NAME", help="the benchmark to use for the paper's data")
    add("--seeds", type=whole, help=f"runs of each network (default: {FULL.seeds}, mini {MINI.seeds})")
    add("--other-seeds", type=whole, help="runs of networks other than RigL and MOON + RigL (default: as --seeds)")
    add("--epochs", type=whole, help=f"epochs per run (default: {FULL.epochs}, mini {MINI.epochs})")
    add("--precision", help="precision of training, float32 or bfloat16 (default: float32)")
    add("--all-detectors", action="store_true", help="score the runs with every detector, not only those of the tables")
    add_workers(parser)
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    keys = arguments.what
    if "mini" in keys:
        arguments.mini = True
    if arguments.action != "list" and not keys:
        raise ValueError(f"{arguments.action} needs the ID of a table or figure; moon paper list shows them")
    extras = list(EXTRAS) if {"all", "mini"} & {*keys} else [key for key in keys if key in EXTRAS]
    items = paper_items.choose(key for key in keys if key not in EXTRAS)
    scale = _scale(arguments)
    folder = arguments.out or Path("runs/paper-mini" if arguments.mini else "runs/paper")
    if arguments.action == "list":
        _list(arguments.data, scale, folder)
        return
    if items and arguments.action in ("plan", "run"):
        absent = paper.missing_data(arguments.data, items, scale)
        wanted = paper.needed_runs(arguments.data, items, scale, absent if arguments.action == "run" else ())
        if not wanted:
            raise DataError(
                f"{arguments.data}: none of the data was found ({', '.join(absent.values())}); moon data shows "
                "what exists, --data or MOON_DATA sets the data root"
            )
        for data, name in absent.items():
            print(f"{name} is not under {arguments.data}: the numbers of {data} will be missing")
        if arguments.all_detectors:
            wanted = {recipe: list(table("detector")) for recipe in wanted}
        if arguments.action == "plan":
            Console().print(state_table(Grid.of(folder, wanted, wanted)))
            return
        grid = Grid.plan(folder, wanted, wanted, arguments.retries, data_facts(arguments.data))
        run_grid(grid, arguments)
        _show(items, extras, scale, arguments.data, folder)
        check_done(grid)
        return
    if arguments.action == "plan":
        print(f"{', '.join(extras)}: no runs needed")
        return
    _show(items, extras, scale, arguments.data, folder)


def _scale(arguments: argparse.Namespace) -> Scale:
    scale = (MINI if arguments.mini else FULL).with_benchmarks(arguments.benchmark)
    if arguments.seeds:
        scale = replace(scale, seeds=arguments.seeds, other_seeds=None)
    if arguments.other_seeds:
        scale = replace(scale, other_seeds=arguments.other_seeds)
    settings = dict(scale.settings) | ({"precision": arguments.precision} if arguments.precision else {})
    return replace(scale, epochs=arguments.epochs or scale.epochs, settings=settings)


def _list(root: Path, scale: Scale, folder: Path) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("ID", "left"), ("title", "left"), ("runs done", "right")):
        table.add_column(heading, justify=justify)  # pyright: ignore[reportArgumentType]
    for item in paper_items.items().values():
        runs = paper.needed_runs(root, [item], scale)
        done = list(Grid.of(folder, runs, runs).states().values()).count(State.DONE)
        table.add_row(item.key, item.title, f"{done} of {len(runs)}")
    table.add_row("flops", "Appendix E: FLOPs of training and inference, next to the paper's", "none needed")
    table.add_row("theory", "Section 4: a numerical demonstration", "none needed")
    Console().print(table)
    print(f"runs are in {folder}")


def _show(items: Sequence[Item], extras: Sequence[str], scale: Scale, root: Path, folder: Path) -> None:
    """Print each table or figure, and write it in every format."""
    console = Console()
    target = folder / "paper"
    target.mkdir(parents=True, exist_ok=True)
    for item in tracked(list(items), "reading runs"):
        table = PaperTable.read(item, scale, root, folder)
        console.print(to_terminal(table, console.width), highlight=False)
        for suffix, text in (("md", to_markdown(table)), ("csv", to_csv(table)), ("tex", to_latex(table))):
            write_text(target / f"{item.key}.{suffix}", text)
        if item.draw and find_spec("matplotlib") is not None:
            from moon.paper.figures import draw

            draw(table, folder, target / item.key)
    if "flops" in extras:
        _flops(console, target)
    if "theory" in extras:
        _theory(target)
    print(f"written: {target}")


def _flops(console: Console, target: Path) -> None:
    """Print and write the table of FLOPs of Appendix E."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    headings = ("FLOPs, ResNet-50 at 80%", "paper", "from its assumptions", "as we train", "why they differ")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    cells = [
        (
            row.quantity,
            "-" if row.paper is None else f"{row.paper:.2g}",
            f"{row.derived:.2g}",
            f"{row.ours:.2g}",
            row.why,
        )
        for row in paper_flops()
    ]
    for line in cells:
        table.add_row(*line)
    console.print(table)
    lines = [f"| {' | '.join(line)} |" for line in (headings, ("---",) * len(headings), *cells)]
    write_text(target / "flops.md", "\n".join(["## flops: Appendix E", "", *lines]) + "\n")


def _theory(target: Path) -> None:
    """Write the demonstration of Section 4: its numbers, and its figure if matplotlib is installed."""
    result = theory.demonstrate()
    write_json(target / "theory.json", result)
    if find_spec("matplotlib") is not None:
        for suffix in ("svg", "png"):
            theory_figure.draw(result, target / f"theory.{suffix}")
    print(f"theory: numbers and figure in {target}; docs/methods/theory.md discusses them")
