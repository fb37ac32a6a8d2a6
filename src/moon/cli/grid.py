"""Do every run of a grid exactly once, several at a time, on this machine or on a Ray cluster."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from moon.cli.arguments import add_data, device_of, seconds, whole
from moon.data import benchmark
from moon.experiments.bench import check_there, unknown_found
from moon.experiments.build import TABLES, pick
from moon.experiments.demo import DETECTORS
from moon.experiments.grid import Grid, Job, Processes, State, Workers, csv_text, tidy
from moon.experiments.plan import AXES, labels, read_file, recipes
from moon.experiments.recipe import Recipe
from moon.experiments.score import read_scores
from moon.experiments.tables import summary_table
from moon.training.checkpoint import write_text

EXAMPLES = """
examples:
  moon grid digits --objective cross-entropy moon --sparsity 0.9 0.95 --seed 0 1 2 --epochs 10
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
  [[runs]]                                     the control: plain loss with MOON's rates and vote
  objective = "cross-entropy"
  rates = "moon"
  vote = 0.2
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
    add("--jobs", type=whole, help="runs at a time (default: one a core, or one a GPU)")
    add("--per-gpu", type=whole, default=1, help="runs at a time on each GPU (default: %(default)s)")
    add("--threads", type=whole, help="of each run on a CPU (default: its share of the cores)")
    add("--device", help="cpu, cuda or cuda:1, ... (default: all GPUs, else cpu)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="on Ray: local (default), auto, or an address")
    add("--gpus", type=float, default=0.0, help="of each run on Ray; a fraction shares one (default: %(default)s)")
    add("--retries", type=int, default=3, help="of a run that the machine failed (default: %(default)s)")
    add("--retry-failed", action="store_true", help="try again what failed by its own settings or data")
    add("--plan", action="store_true", help="only show how the runs stand")
    add(
        "--checkpoint-seconds", type=seconds, default=30, metavar="S", help="between checkpoints (default: %(default)s)"
    )
    add_data(parser)


def act(arguments: argparse.Namespace) -> None:
    wanted = _recipes(arguments)
    detectors = _detectors(arguments.detector)
    grid = Grid.plan(arguments.out, wanted, detectors, arguments.retries, _unknown(arguments.data))
    if arguments.plan:
        Console().print(_standing(grid))
        return
    if arguments.retry_failed:
        grid.forget_failures()
    for name in dict.fromkeys(recipe.benchmark for recipe in wanted):
        check_there(arguments.data, benchmark(arguments.data, name))  # once, not in every run
    workers = _workers(arguments)
    _run(grid, workers)
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


def _unknown(root: Path) -> Callable[[Recipe], list[str]]:
    """What the runs of each benchmark can be scored on; looked up once."""
    found = cache(lambda name: unknown_found(root, benchmark(root, name)))
    return lambda recipe: [name for name in found(recipe.benchmark) if name != recipe.outliers]


def _detectors(names: Sequence[str]) -> list[str]:
    if list(names) == ["none"]:
        return []
    if list(names) == ["all"]:
        return list(TABLES["detector"])
    for name in names:
        pick(TABLES["detector"], name.partition(":")[0], "detector")
    return list(dict.fromkeys(names))


def _workers(arguments: argparse.Namespace) -> Workers:
    if arguments.ray is not None:
        from moon.experiments.on_ray import RayWorkers

        return RayWorkers(
            arguments.ray, arguments.data, arguments.threads or 1, arguments.gpus, arguments.checkpoint_seconds
        )
    device = device_of(arguments.device)
    if device.type == "cuda":
        every = device.index is None
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if every else [str(device)]
        places = arguments.jobs or arguments.per_gpu * len(devices)
    else:
        devices = [str(device)]
        places = arguments.jobs or os.cpu_count() or 1
    threads = arguments.threads or max(1, (os.cpu_count() or 1) // places)
    return Processes(places, arguments.data, devices, threads, arguments.checkpoint_seconds)


def _run(grid: Grid, workers: Workers) -> None:
    console = Console()
    told: set[str] = set()

    def tell(grid: Grid) -> None:
        for job in grid.jobs:
            name, state = job.recipe.name, job.state()
            if state in (State.DONE, State.FAILED) and name not in told:
                told.add(name)
                if name not in before:
                    console.print(_line(job, state), highlight=False)

    before = {name for name, state in grid.states().items() if state is State.DONE}
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def watch(grid: Grid) -> None:
            tell(grid)
            live.update(_running(grid, workers.places))

        grid.run(workers, watch, poll=0.2)


def _line(job: Job, state: State) -> str:
    if state is State.FAILED:
        return f"[red]failed[/] {job.recipe.name}: {escape(job.why())}"
    return f"[green]done[/]   {job.recipe.name}"


def _running(grid: Grid, places: int) -> Group:
    """The bar of the whole grid, and a line for each run under way."""
    total = sum(job.recipe.epochs for job in grid.jobs)
    done = sum(job.epochs_done() for job in grid.jobs)
    states = list(grid.states().values())
    left = grid.seconds_left(places)
    time_left = "" if left is None else f", {timedelta(seconds=round(left))} left"
    head = f"{states.count(State.DONE)} of {len(states)} runs done, {states.count(State.RUNNING)} running{time_left}"
    table = Table.grid(padding=(0, 1))
    for job in grid.jobs:
        if job.state() is State.RUNNING:
            bar = ProgressBar(total=job.recipe.epochs, completed=job.epochs_done(), width=10)
            table.add_row(bar, f"{job.epochs_done()}/{job.recipe.epochs}", job.recipe.name)
    return Group(ProgressBar(total=total, completed=done, width=40), head, table)


def _standing(grid: Grid) -> Table:
    states = grid.states()
    counts = ", ".join(f"{list(states.values()).count(state)} {state}" for state in State)
    table = Table(title=f"{len(states)} runs in {grid.folder}: {counts}", title_justify="left", box=box.SIMPLE)
    for heading in ("run", "state", "epochs"):
        table.add_column(heading, overflow="fold")
    for job in grid.jobs:
        why = f": {escape(job.why())}" if states[job.recipe.name] is State.FAILED else ""
        table.add_row(job.recipe.name, f"{states[job.recipe.name]}{why}", f"{job.epochs_done()}/{job.recipe.epochs}")
    return table


def _show(grid: Grid, out: Path) -> None:
    """The table over all that is done, and what is not."""
    methods: dict[str, list] = {}
    names = labels([job.recipe for job in grid.jobs])
    rows = []
    for job in grid.jobs:
        if job.state() is State.DONE and (found := read_scores(job.folder)) is not None:
            methods.setdefault(names[job.recipe.name], []).append(found[0])
            rows += tidy(job, names[job.recipe.name], found[0])
    if methods:
        Console().print(summary_table(methods))
        path = out / "results.csv"
        write_text(path, csv_text(rows))
        print(f"every number of every run: {path}")
    missing = [job for job in grid.jobs if job.state() is not State.DONE]
    if missing:
        some = "; ".join(f"{job.recipe.name}: {job.why()}" for job in missing[:3])
        raise ValueError(
            f"{len(missing)} of {len(grid.jobs)} runs are not done ({some}); see worker.log in their folders"
        )
    print(f"all {len(grid.jobs)} runs are done: {out}")
