"""A worker process of a grid, `python -m moon.grid.worker`: trains and scores one run after another.

It reads run folders from standard input, one per line. It writes a line for each warning that the driver should show,
and an empty line when it has finished a run. A folder contains its recipe. A failure that is due to the recipe or the
data is written to `failure.json`, so that no driver tries it again; any other failure, such as a kill, is due to the
machine.
"""

from __future__ import annotations

import argparse
import io
import logging
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from moon.data import DataError
from moon.files import open_to_append, write_json
from moon.grid.todo import Todo
from moon.recipe import Recipe
from moon.run import learning
from moon.run.folder import REMAINING
from moon.run.images import BenchmarkImages
from moon.run.machine import chosen_threads, cudnn_mode
from moon.run.train import train_run
from moon.score.score import score_run
from moon.training import DamagedCheckpoint, Diverged, RunLocked, locked

PERMANENT = (ValueError, DataError, Diverged, DamagedCheckpoint)  # a retry would fail again

_log = logging.getLogger("moon.grid.worker")  # __name__ is "__main__" in a worker process
Open = Callable[[Path, str, tuple[str, ...], tuple[str, ...], str], BenchmarkImages]


def work(
    folder: Path,
    data: Path,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    exact: bool = True,
    open_images: Open = BenchmarkImages.open,
    choose_threads: bool = False,
) -> None:
    """Train the run in this folder and score it as `todo.json` says."""
    opened = lru_cache(maxsize=1)(open_images)
    try:
        with locked(folder, lend=True), cudnn_mode(exact):  # from training to scoring
            recipe = Recipe.load(folder / "recipe.json")
            todo = Todo.read(folder)
            images = opened(data, recipe.benchmark, todo.near, todo.far, recipe.outliers)
            settings: dict[str, Any] = {"device": device, "checkpoint_seconds": checkpoint_seconds, "exact": exact}
            with chosen_threads(recipe, images.benchmark, device) if choose_threads else nullcontext():
                train_run(recipe, folder, images, **settings)
            while (todo := Todo.read(folder)).detectors:
                images = opened(data, recipe.benchmark, todo.near, todo.far, recipe.outliers)
                if images.unknown:  # otherwise there is nothing to score; a later driver adds it again
                    score_run(folder, images, todo.detectors, device=device, skip_unfit=True)
                if Todo.read(folder) == todo:  # a driver may have added more in the meantime
                    (folder / REMAINING).unlink()
    except RunLocked:
        return  # another worker is executing it
    except PERMANENT as error:
        if isinstance(error, OSError):  # some errors are both
            raise
        write_json(folder / "failure.json", {"kind": type(error).__name__, "message": str(error)})
        _log.error("%s", error)


def log_to_stderr() -> None:
    """Write what `moon` logs to stderr, which goes to worker.log."""
    logger = logging.getLogger("moon")
    if not logger.handlers:  # a process of Ray executes several tasks
        logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)


class Warnings(logging.Handler):
    """Passes each warning on as one line."""

    def __init__(self, write: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        self._write(" ".join(record.getMessage().split()))


def _tell(descriptor: int, text: str) -> None:
    """Write a line to a pipe. If the driver has ended, it is in worker.log only."""
    with suppress(BrokenPipeError):
        os.write(descriptor, f"{text}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(prog="moon.grid.worker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    parser.add_argument("--inexact", action="store_true")
    parser.add_argument("--choose-threads", action="store_true")
    arguments = parser.parse_args()
    log_to_stderr()
    answers = os.dup(1)
    logging.getLogger(learning.__name__).addHandler(Warnings(partial(_tell, answers)))
    open_images = lru_cache(maxsize=1)(BenchmarkImages.open)
    for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
        folder = Path(line.rstrip("\n"))
        with suppress(ValueError), open_to_append(folder / "worker.log") as log:  # all output goes there from now on
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        settings = arguments.device, arguments.checkpoint_seconds, not arguments.inexact
        work(folder, arguments.data, *settings, open_images, arguments.choose_threads)
        sys.stdout.flush()
        try:
            os.write(answers, b"\n")
        except BrokenPipeError:
            return  # the driver has ended


if __name__ == "__main__":
    main()
