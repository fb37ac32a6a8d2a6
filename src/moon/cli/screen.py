"""Progress bars and result tables in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn, track

from moon.recipe import Recipe
from moon.results.figures import score_histograms
from moon.results.plotting import save
from moon.results.tables import known_table, unknown_table
from moon.run.images import BenchmarkImages
from moon.run.train import train_run
from moon.score.files import Scores
from moon.training import Training
from moon.training.ranks import Ranks

REFRESH_SECONDS = 0.3  # reading the loss waits for the device, so not after every step


def counted(number: int, what: str) -> str:
    """Return a number with its noun: 'no votes', '1 vote', '2 votes'."""
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"


def tracked(items: list, what: str) -> Iterable:
    """The items, with a progress bar that disappears at the end."""
    return track(items, what, transient=True, console=Console())


def train_on_screen(
    recipe: Recipe,
    folder: Path,
    images: BenchmarkImages,
    device: torch.device,
    checkpoint_seconds: float = 30.0,
    ranks: Ranks | None = None,
    plain: bool = False,
    exact: bool = True,
) -> dict[str, Any]:
    """`train_run` with a progress bar; of several processes only the first shows it."""
    settings: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "ranks": ranks}
    settings |= {"captured": False if plain else None, "exact": exact}
    if ranks is not None and not ranks.is_first:
        return train_run(recipe, folder, images, **settings)
    with _progress(recipe) as callbacks:
        return train_run(recipe, folder, images, **settings, **callbacks)


@contextmanager
def _progress(recipe: Recipe) -> Iterator[dict[str, Any]]:
    """A bar for the whole run with loss, accuracy, sparsity, w and time left: the callbacks of `train_run`."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]} {task.fields[state]}"),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns) as bar:
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
            w = f" w {record['w']:.2f}" if "w" in record else ""
            state = f"acc {record['val_accuracy']:.1%} sparse {1 - record['density']:.1%}{w}"
            bar.update(task, completed=record["epoch"] + 1, state=state)

        yield {"on_start": on_start, "on_step": on_step, "on_epoch": on_epoch}
        bar.update(task, completed=recipe.epochs)  # a run that was already finished has not moved the bar


def show_scores(
    methods: Mapping[str, Sequence[Mapping[str, Any]]], scores: Mapping[str, Scores], figure: Path, title: str
) -> None:
    """Print the tables of scored runs, and write the figure of known against unknown scores."""
    console = Console()
    console.print(known_table(methods))
    console.print(unknown_table(methods))
    if find_spec("matplotlib") is None:
        print("no figure: matplotlib is not installed (pip install 'moon-sparse[report]')")
        return
    detector = next(iter(next(iter(scores.values()))))
    save(score_histograms(scores, detector, title), figure)
    print(f"figure: {figure}")
