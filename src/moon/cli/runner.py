"""Doing the runs of a grid from a command: its options, what is seen meanwhile, and how it ended."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import NoReturn

import torch
from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from moon.cli.arguments import add_inexact, device_of, seconds, whole
from moon.cli.screen import counted, tracked
from moon.grid.grid import Facts, Grid, Job, Processes, State, Workers
from moon.grid.mps import shared_gpus
from moon.recipe.expand import labels
from moon.recipe.recipe import Recipe
from moon.run.images import Bench


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Where and how many at a time."""
    add = parser.add_argument
    add("--jobs", type=whole, help="runs at a time (default: one a core, or one a GPU)")
    add("--per-gpu", type=whole, default=1, help="runs at a time on each GPU (default: %(default)s)")
    add("--threads", type=whole, help="of each run on a CPU (default: its share of the cores)")
    add("--device", help="cpu, cuda or cuda:1, ... (default: all GPUs, else cpu)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="on Ray: local (default), auto, or an address")
    add("--gpus", type=float, default=0.0, help="of each run on Ray; a fraction shares one (default: %(default)s)")
    add_inexact(parser)
    add("--retries", type=int, default=3, help="of a run that the machine failed (default: %(default)s)")
    add("--retry-failed", action="store_true", help="try again what failed by its own settings or data")
    add(
        "--checkpoint-seconds", type=seconds, default=30, metavar="S", help="between checkpoints (default: %(default)s)"
    )


def do(grid: Grid, arguments: argparse.Namespace) -> None:
    """Do what is missing, and say what is seen; `check_done` says what is not done after all."""
    if arguments.retry_failed:
        grid.forget_failures()
    with ExitStack() as stack:
        _run(grid, _workers(arguments, stack))


def check_done(grid: Grid) -> None:
    """Raise an error that names what is not done."""
    states = grid.states()
    failed = [job for job in grid.jobs if states[job.recipe.name] is State.FAILED]
    open_jobs = [job for job in grid.jobs if states[job.recipe.name] not in (State.DONE, State.FAILED)]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(grid.jobs)} runs failed, the first one: {failed[0].why()}; mend the cause, then "
            "give the command again with --retry-failed"
        )
    if open_jobs:
        raise ValueError(
            f"{len(open_jobs)} of {len(grid.jobs)} runs are not done ({open_jobs[0].why()}); "
            "see worker.log in their folders"
        )


def facts_of(root: Path) -> Callable[[Recipe], Facts]:
    """What the data of each benchmark are now, read once."""

    @cache
    def facts(name: str, outliers: str) -> Facts:
        bench = Bench.open(root, name, outliers=outliers, track=lambda items: tracked(items, f"reading {name}"))
        if not bench.unknown:
            print(
                f"{name}: no unknown set was found under {root}, so nothing is scored (moon data shows what is there)"
            )
        near, far = ([name for name in names if name in bench.unknown] for names in (bench.row.near, bench.row.far))
        return Facts(bench.fingerprint(), {"sha256": bench.digests(), "near": near, "far": far})

    return lambda recipe: facts(recipe.benchmark, recipe.outliers)


def _workers(arguments: argparse.Namespace, stack: ExitStack) -> Workers:
    if arguments.ray is not None:
        from moon.grid.on_ray import RayWorkers

        return RayWorkers(
            arguments.ray,
            arguments.data,
            arguments.threads or 1,
            arguments.gpus,
            arguments.checkpoint_seconds,
            not arguments.inexact,
        )
    device = device_of(arguments.device)
    if device.type == "cuda":
        every = device.index is None
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if every else [str(device)]
        places = arguments.jobs or arguments.per_gpu * len(devices)
    else:
        devices = [str(device)]
        places = arguments.jobs or os.cpu_count() or 1
        if arguments.per_gpu > 1:
            print(f"--per-gpu {arguments.per_gpu} means nothing on {device.type}: {counted(places, 'run')} at a time")
    threads = arguments.threads or max(1, (os.cpu_count() or 1) // places)
    environment = {}
    if device.type == "cuda" and places > len(devices):
        environment = stack.enter_context(shared_gpus())
        how = "through MPS" if environment else "in turn, as there is no MPS"
        print(f"{places} runs share {counted(len(devices), 'GPU')} {how}")
    exact = not arguments.inexact
    return Processes(places, arguments.data, devices, threads, arguments.checkpoint_seconds, exact, environment)


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
    signal.signal(signal.SIGTERM, _interrupt)  # as orderly as Ctrl-C
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def watch(grid: Grid) -> None:
            tell(grid)
            live.update(_running(grid, workers.places))

        grid.run(workers, watch, poll=0.5)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


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


def standing(grid: Grid) -> Table:
    states = grid.states()
    counts = ", ".join(f"{list(states.values()).count(state)} {state}" for state in State)
    table = Table(title=f"{len(states)} runs in {grid.folder}: {counts}", title_justify="left", box=box.SIMPLE)
    for heading in ("run", "method", "state", "epochs"):
        table.add_column(heading, overflow="fold")
    methods = labels(job.recipe for job in grid.jobs)
    for job in grid.jobs:
        name = job.recipe.name
        why = f": {escape(job.why())}" if states[name] is State.FAILED else ""
        table.add_row(name, methods[name], f"{states[name]}{why}", f"{job.epochs_done()}/{job.recipe.epochs}")
    return table
