"""Progress while something runs: bars in a terminal, and plain lines where there is none (nohup, Slurm, CI)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from rich import get_console
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track
from rich.table import Column

from moon.data import Benchmark
from moon.deploy.threshold import images_needed
from moon.recipe import Recipe
from moon.run.images import BenchmarkImages
from moon.run.machine import chosen_threads, hardware
from moon.run.train import train_run
from moon.suggest import counted
from moon.training import Training
from moon.training.ranks import Ranks

_log = logging.getLogger(__name__)
REFRESH_SECONDS = 0.3  # reading the loss waits for the device, so not after every step


def duration(seconds: float) -> str:
    """Return a time as h:mm:ss."""
    return str(timedelta(seconds=round(seconds)))


def tracked(items: list, what: str) -> Iterable:
    """The items, with a progress bar that disappears at the end; without a terminal there is no bar."""
    console = Console()
    return track(items, what, transient=True, console=console) if console.is_interactive else items


def train_on_screen(
    recipe: Recipe,
    folder: Path,
    images: BenchmarkImages,
    device: torch.device,
    checkpoint_seconds: float = 30.0,
    ranks: Ranks | None = None,
    plain: bool = False,
    exact: bool = True,
    loggers: Sequence[str] | None = None,
) -> dict[str, Any]:
    """`train_run` with its progress, which only the first of several processes shows."""
    settings: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "ranks": ranks}
    settings |= {"captured": False if plain else None, "exact": exact, "loggers": loggers}
    with training_threads(recipe, images.benchmark, device):
        if ranks is not None and not ranks.is_first:
            return train_run(recipe, folder, images, **settings)
        with _bar(recipe) if get_console().is_interactive else nullcontext(_lines(recipe)) as callbacks:

            def on_start(training: Training) -> None:
                callbacks["on_start"](training)
                if not can_be_packed(images):
                    count = counted(len(images.splits["val"].labels), "validation image")
                    _log.warning(
                        "with %s the network cannot be packed with the usual threshold, which needs %d; a run keeps to "
                        "its images, so add some (moon data import, or hold-out --val-share) and train in another "
                        "folder (--out)", count, _images_to_pack(),
                    )  # fmt: skip

            settings |= {**callbacks, "on_start": on_start}
            return train_run(recipe, folder, images, **settings)


def can_be_packed(images: BenchmarkImages) -> bool:
    """Whether there are enough validation images for the usual threshold of `moon pack`."""
    return len(images.splits["val"].labels) >= _images_to_pack()


def _images_to_pack() -> int:
    """The usual detector is fitted on one half of the validation images, and the other half is for the threshold."""
    return 2 * images_needed() - 1


def training_threads(recipe: Recipe, benchmark: Benchmark, device: torch.device) -> AbstractContextManager[None]:
    """Context with the CPU threads of a training: OMP_NUM_THREADS if it is set; otherwise chosen, see `threads_for`."""
    return nullcontext() if "OMP_NUM_THREADS" in os.environ else chosen_threads(recipe, benchmark, device)


def _state(record: Mapping[str, Any], separator: str = " ") -> str:
    """Validation accuracy, sparsity and, if there is one, w after an epoch."""
    parts = [f"acc {record['val_accuracy']:.1%}", f"sparse {1 - record['density']:.1%}"]
    return separator.join(parts + ([f"w {record['w']:z.2f}"] if "w" in record else []))


def _lines(recipe: Recipe) -> dict[str, Callable[..., None]]:
    """A line at the start and after each epoch: callbacks of `train_run`."""
    first = 0

    def on_start(training: Training) -> None:
        nonlocal first
        first = training.next_epoch
        left = f"{counted(recipe.epochs - first, 'epoch')} of {counted(len(training.batches), 'step')}"
        print(f"training {recipe.name}: {left} on {hardware(training.device)}", flush=True)

    def on_epoch(record: Mapping[str, Any]) -> None:
        done = record["epoch"] + 1
        left = record["elapsed_seconds"] / (done - first) * (recipe.epochs - done)
        print(
            f"epoch {done}/{recipe.epochs}: loss {record['loss']:.4f}, {_state(record, ', ')}, "
            f"{record['seconds']:.1f} s, {duration(left)} left",
            flush=True,
        )

    return {"on_start": on_start, "on_epoch": on_epoch}


@contextmanager
def _bar(recipe: Recipe) -> Iterator[dict[str, Callable[..., None]]]:
    """A bar for the whole run with loss, accuracy, sparsity, w and time left: callbacks of `train_run`."""
    # Texts wrap if the terminal is narrow; numbers of epochs and times are never cut.
    columns = (
        TextColumn("{task.description}", table_column=Column(overflow="fold")),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]} {task.fields[state]}", table_column=Column(overflow="fold")),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=get_console()) as bar:
        label = f"{recipe.objective} {recipe.topology} s{recipe.seed}"  # short, because a terminal may have 80 columns
        task = bar.add_task(label, total=recipe.epochs, loss="", state="")
        steps, shown_at = 1, 0.0

        def on_start(training: Training) -> None:
            nonlocal steps
            steps = len(training.batches)
            bar.update(task, completed=training.next_epoch)

        def on_step(epoch: int, step: int, loss: Callable[[], float]) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at > REFRESH_SECONDS:
                shown_at = time.monotonic()
                bar.update(task, completed=epoch + (step + 1) / steps, loss=f"loss {loss():.2f}")

        def on_epoch(record: Mapping[str, Any]) -> None:
            bar.update(task, completed=record["epoch"] + 1, state=_state(record))

        yield {"on_start": on_start, "on_step": on_step, "on_epoch": on_epoch}
        bar.update(task, completed=recipe.epochs)  # a run that was already finished has not moved the bar
