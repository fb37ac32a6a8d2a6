"""Run a grid from the command line: where its runs are executed, the progress display, and the outcome."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import torch
from rich import get_console
from rich.console import Group
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table

from moon.cli.arguments import device_of
from moon.cli.failing import with_flags
from moon.cli.output import printable, show_group
from moon.cli.screen import duration
from moon.grid import Grid, Job, Processes, State, Workers
from moon.grid.mps import shared_gpus
from moon.recipe.labels import labels
from moon.results.layout import compact_table
from moon.run.machine import cores
from moon.suggest import counted

STATUS_SECONDS = 30.0  # minimum time between two status lines, where there is no terminal


def run_grid(grid: Grid, arguments: argparse.Namespace) -> None:
    """Run what is missing, with a progress display; `check_done` then reports what is still not done."""
    if arguments.retry_failed:
        grid.forget_failures()
    exact = not arguments.inexact
    if arguments.ray is not None:
        from moon.grid.on_ray import RayWorkers

        resources = arguments.threads or 1, arguments.gpus
        execute(grid, RayWorkers(arguments.ray, arguments.data, *resources, arguments.checkpoint_seconds, exact))
        _remark_on_threads(grid)
        return
    with ExitStack() as stack:
        workers = local_workers(
            grid,
            arguments.data,
            arguments.device,
            jobs=arguments.jobs,
            per_gpu=arguments.per_gpu,
            threads=arguments.threads,
            checkpoint_seconds=arguments.checkpoint_seconds,
            exact=exact,
            stack=stack,
        )
        execute(grid, workers)
    _remark_on_threads(grid)


def _remark_on_threads(grid: Grid) -> None:
    """Say if runs were trained with different numbers of CPU threads: --jobs and --threads change the last bits."""
    found = sorted({threads for job in grid.jobs if (threads := job.threads()) is not None})
    if len(found) > 1:
        print(
            f"the runs were trained with different numbers of CPU threads ({', '.join(map(str, found))}, see "
            "result.json), which changes the last bits of a result; --threads sets one number for all new runs"
        )


def local_workers(
    grid: Grid,
    data: Path,
    device_name: str | None,
    *,
    stack: ExitStack,
    jobs: int | None = None,
    per_gpu: int = 1,
    threads: int | None = None,
    checkpoint_seconds: float = 30.0,
    exact: bool = True,
) -> Processes:
    """Processes of this machine for what is missing in a grid: on all GPUs, else on the CPU, if no device is named.

    By default there are as many `jobs` at a time as cores or GPUs, but no more than are missing, each with
    OMP_NUM_THREADS threads, else as for `Processes`. Closing the `stack` stops what the processes share.
    """
    device = device_of(device_name)
    devices = [str(device)]
    if device.type == "cuda":
        if device.index is None:
            devices = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
        places = jobs or per_gpu * len(devices)
    else:
        places = jobs or max(1, min(cores(), len(_open_jobs(grid))))
        if per_gpu > 1:
            print(f"--per-gpu {per_gpu} has no effect on {device.type}: {counted(places, 'run')} at a time")
    environment = {}
    if device.type == "cuda" and places > len(devices):
        environment = stack.enter_context(shared_gpus())
        how = "through MPS" if environment else "by time slicing, because MPS is not available"
        print(f"{places} runs share {counted(len(devices), 'GPU')} {how}")
    if threads is None and "OMP_NUM_THREADS" in os.environ:
        threads = torch.get_num_threads()
    return Processes(places, data, devices, threads, checkpoint_seconds, exact, environment)


def check_done(grid: Grid, again: str = "run the command again with --retry-failed") -> None:
    """Raise a ValueError that names what is not done, and what to do about runs that failed."""
    states = grid.states()
    failed = [job for job in grid.jobs if states[job.recipe.name] is State.FAILED]
    if failed:
        raise ValueError(
            f"{len(failed)} of {counted(len(grid.jobs), 'run')} failed, the first one: {failed[0].reason()}; "
            f"correct the cause, then {again}"
        )
    if open_jobs := _open_jobs(grid):
        verb = "is" if len(open_jobs) == 1 else "are"
        raise ValueError(
            f"{len(open_jobs)} of {counted(len(grid.jobs), 'run')} {verb} not done ({open_jobs[0].reason()}); "
            "see worker.log in their folders"
        )


def _open_jobs(grid: Grid) -> list[Job]:
    return [job for job in grid.jobs if job.state() not in (State.DONE, State.FAILED)]


def execute(grid: Grid, workers: Workers) -> None:
    """Run what is missing. A terminal shows bars; elsewhere there are lines, for each run at its end and now and then
    for the whole grid. Both show warnings of runs."""
    reported = {name for name, state in grid.states().items() if state is State.DONE}
    warned: set[tuple[str, str]] = set()

    def news() -> Iterator[tuple[str, str]]:
        for job in grid.jobs:
            name, state = job.recipe.name, job.state()
            for text in job.warnings:
                if (name, text) not in warned:
                    warned.add((name, text))
                    yield "yellow", printable(f"warning {name}: {text}")
            if state in (State.DONE, State.FAILED) and name not in reported:
                reported.add(name)
                yield "red" if state is State.FAILED else "green", _line(job, state)

    if get_console().is_interactive:
        _run_with_bars(grid, workers, news)
    else:
        _run_with_lines(grid, workers, news)


News = Callable[[], Iterator[tuple[str, str]]]  # a colour and a line about a run, whose first word is coloured


def _run_with_bars(grid: Grid, workers: Workers, news: News) -> None:
    console = get_console()
    with Live(console=console, refresh_per_second=2, transient=True) as live:

        def watch(grid: Grid) -> None:
            for colour, line in news():
                word, _, rest = line.partition(" ")
                console.print(f"[{colour}]{word}[/] {escape(rest)}", highlight=False, soft_wrap=True)
            live.update(_progress(grid, workers.places))

        grid.run(workers, watch, poll=0.5)


def _run_with_lines(grid: Grid, workers: Workers, news: News) -> None:
    missing = len(_open_jobs(grid))
    if missing:
        print(f"{counted(missing, 'run')} to do, {min(workers.places, missing)} at a time", flush=True)
    shown, shown_at = _counts(grid), time.monotonic()

    def watch(grid: Grid) -> None:
        nonlocal shown, shown_at
        for _, line in news():
            print(line, flush=True)
        if time.monotonic() - shown_at >= STATUS_SECONDS and (counts := _counts(grid)) != shown:
            shown, shown_at = counts, time.monotonic()
            print(_status(grid, workers.places), flush=True)

    grid.run(workers, watch, poll=0.5)


def _line(job: Job, state: State) -> str:
    """How a run ended: its accuracy, which shows at once if it learned nothing, or why it failed."""
    known = job.result().get("known")
    what = with_flags(job.reason()) if state is State.FAILED else f"accuracy {known['accuracy']:.1%}" if known else ""
    return printable(f"{state:6} {job.recipe.name}{what and f': {what}'}")


def _counts(grid: Grid) -> tuple[int, ...]:
    """Runs done, failed and running, and epochs done."""
    states = list(grid.states().values())
    of_states = (states.count(state) for state in (State.DONE, State.FAILED, State.RUNNING))
    return *of_states, sum(job.epochs_done() for job in grid.jobs)


def _status(grid: Grid, places: int) -> str:
    """The state of the grid in one line."""
    done, failed, running, epochs = _counts(grid)
    left = grid.seconds_left(places)
    time_left = "" if left is None else f", {duration(left)} left"
    of_epochs = f"{epochs} of {sum(job.recipe.epochs for job in grid.jobs)} epochs"
    failures = f", {failed} failed" if failed else ""
    return f"{done} of {counted(len(grid.jobs), 'run')} done{failures}, {running} running, {of_epochs}{time_left}"


def _progress(grid: Grid, places: int) -> Table:
    """A bar for the whole grid, and a line for each active run."""
    total, done = sum(job.recipe.epochs for job in grid.jobs), sum(job.epochs_done() for job in grid.jobs)
    active = Table.grid(padding=(0, 1))
    for name in ("bar", "epochs", "run"):
        active.add_column(no_wrap=name != "run", overflow="fold")
    for job in grid.jobs:
        if job.state() is State.RUNNING:
            bar = ProgressBar(total=job.recipe.epochs, completed=job.epochs_done(), width=10)
            name = escape(printable(job.recipe.name))
            active.add_row(bar, f"{job.epochs_done()}/{job.recipe.epochs}", name)
    whole = Table.grid()  # not a Group: there, text would follow a bar on the same line
    whole.add_row(ProgressBar(total=total, completed=done, width=40))
    whole.add_row(_status(grid, places))
    whole.add_row(active)
    return whole


def show_states(grid: Grid) -> None:
    """Print the state of every run."""
    states = grid.states()
    counts = ", ".join(f"{list(states.values()).count(state)} {state}" for state in State)
    table = compact_table()
    for heading in ("run", "method", "state", "epochs"):
        table.add_column(heading, justify="right" if heading == "epochs" else "left")
    methods = labels(job.recipe for job in grid.jobs)
    for job in grid.jobs:
        name = job.recipe.name
        reason = f": {with_flags(job.reason())}" if states[name] is State.FAILED else ""
        table.add_row(name, methods[name], f"{states[name]}{reason}", f"{job.epochs_done()}/{job.recipe.epochs}")
    show_group(Group(f"{counted(len(states), 'run')} in {grid.folder}: {counts}", table))
