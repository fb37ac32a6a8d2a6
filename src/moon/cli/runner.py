"""Run a grid from the command line: its options, the progress display, and the outcome."""

from __future__ import annotations

import argparse
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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

from moon.cli.arguments import add_checkpoint_seconds, add_inexact, device_of, whole
from moon.cli.screen import counted, tracked
from moon.grid import DataFacts, Grid, Job, Processes, State, Workers
from moon.grid.mps import shared_gpus
from moon.recipe import Recipe
from moon.recipe.labels import labels
from moon.run.images import BenchmarkImages
from moon.score.files import digests


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the options for where to run and how many runs at a time."""
    add = parser.add_argument
    add("--jobs", type=whole, help="runs at a time (default: one per core, or one per GPU)")
    add("--per-gpu", type=whole, default=1, help="runs at a time on each GPU (default: %(default)s)")
    add("--threads", type=whole, help="CPU threads of each run (default: its share of the cores)")
    add("--device", help="cpu, cuda or cuda:1, ... (default: all GPUs, else cpu)")
    add("--ray", nargs="?", const="local", metavar="ADDRESS", help="run on Ray: local (default), auto, or an address")
    add("--gpus", type=float, default=0.0, help="GPUs per run on Ray; fractions share one (default: %(default)s)")
    add_inexact(parser)
    add("--retries", type=int, default=3, help="retries if a run's process or machine fails (default: %(default)s)")
    add("--retry-failed", action="store_true", help="also retry runs that failed because of their settings or data")
    add_checkpoint_seconds(parser)


def run_grid(grid: Grid, arguments: argparse.Namespace) -> None:
    """Run what is missing, with a progress display; `check_done` then reports what is still not done."""
    if arguments.retry_failed:
        grid.forget_failures()
    with ExitStack() as stack:
        _run(grid, _workers(arguments, stack))


def check_done(grid: Grid) -> None:
    """Raise a ValueError that names what is not done."""
    states = grid.states()
    failed = [job for job in grid.jobs if states[job.recipe.name] is State.FAILED]
    open_jobs = [job for job in grid.jobs if states[job.recipe.name] not in (State.DONE, State.FAILED)]
    if failed:
        raise ValueError(
            f"{len(failed)} of {len(grid.jobs)} runs failed, the first one: {failed[0].reason()}; correct the cause, "
            "then run the command again with --retry-failed"
        )
    if open_jobs:
        raise ValueError(
            f"{len(open_jobs)} of {len(grid.jobs)} runs are not done ({open_jobs[0].reason()}); "
            "see worker.log in their folders"
        )


def data_facts(root: Path) -> Callable[[Recipe], DataFacts]:
    """Return a function that reads the current data of a recipe; the data of each benchmark are read once."""

    @cache
    def facts(name: str, outliers: str) -> DataFacts:
        images = BenchmarkImages.open(
            root, name, outliers=outliers, track=lambda items: tracked(items, f"reading {name}")
        )
        if not images.unknown:
            print(f"{name}: no unknown set was found under {root}, so nothing is scored (moon data shows what exists)")
        benchmark = images.benchmark
        near, far = ([name for name in names if name in images.unknown] for names in (benchmark.near, benchmark.far))
        return DataFacts(images.fingerprint(), {"sha256": digests(images), "near": near, "far": far})

    return lambda recipe: facts(recipe.benchmark, recipe.outliers)


def _workers(arguments: argparse.Namespace, stack: ExitStack) -> Workers:
    exact = not arguments.inexact
    if arguments.ray is not None:
        from moon.grid.on_ray import RayWorkers

        resources = arguments.threads or 1, arguments.gpus
        return RayWorkers(arguments.ray, arguments.data, *resources, arguments.checkpoint_seconds, exact)
    device = device_of(arguments.device)
    if device.type == "cuda":
        every = device.index is None
        devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())] if every else [str(device)]
        places = arguments.jobs or arguments.per_gpu * len(devices)
    else:
        devices = [str(device)]
        places = arguments.jobs or os.cpu_count() or 1
        if arguments.per_gpu > 1:
            runs = counted(places, "run")
            print(f"--per-gpu {arguments.per_gpu} has no effect on {device.type}: {runs} at a time")
    threads = arguments.threads or max(1, (os.cpu_count() or 1) // places)
    environment = {}
    if device.type == "cuda" and places > len(devices):
        environment = stack.enter_context(shared_gpus())
        how = "through MPS" if environment else "by time slicing, because MPS is not available"
        print(f"{places} runs share {counted(len(devices), 'GPU')} {how}")
    return Processes(places, arguments.data, devices, threads, arguments.checkpoint_seconds, exact, environment)


def _run(grid: Grid, workers: Workers) -> None:
    console = Console()
    reported = {name for name, state in grid.states().items() if state is State.DONE}

    def report(grid: Grid) -> None:
        for job in grid.jobs:
            name, state = job.recipe.name, job.state()
            if state in (State.DONE, State.FAILED) and name not in reported:
                reported.add(name)
                console.print(_line(job, state), highlight=False)

    with _sigterm_as_interrupt(), Live(console=console, refresh_per_second=2, transient=True) as live:

        def watch(grid: Grid) -> None:
            report(grid)
            live.update(_progress(grid, workers.places))

        grid.run(workers, watch, poll=0.5)


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Context in which SIGTERM stops the workers as cleanly as Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def _line(job: Job, state: State) -> str:
    if state is State.FAILED:
        return f"[red]failed[/] {job.recipe.name}: {escape(job.reason())}"
    return f"[green]done[/]   {job.recipe.name}"


def _progress(grid: Grid, places: int) -> Group:
    """A bar for the whole grid, and a line for each active run."""
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


def state_table(grid: Grid) -> Table:
    """The state of every run."""
    states = grid.states()
    counts = ", ".join(f"{list(states.values()).count(state)} {state}" for state in State)
    table = Table(title=f"{len(states)} runs in {grid.folder}: {counts}", title_justify="left", box=box.SIMPLE)
    for heading in ("run", "method", "state", "epochs"):
        table.add_column(heading, overflow="fold")
    methods = labels(job.recipe for job in grid.jobs)
    for job in grid.jobs:
        name = job.recipe.name
        reason = f": {escape(job.reason())}" if states[name] is State.FAILED else ""
        table.add_row(name, methods[name], f"{states[name]}{reason}", f"{job.epochs_done()}/{job.recipe.epochs}")
    return table
