"""A worker process of a grid, `python -m moon.grid.worker`: trains and scores one run after another.

It reads run folders from standard input, one per line, and writes an empty line when it has finished one. A folder
contains its recipe. A failure that is due to the recipe or the data is written to `failure.json`, so that no driver
tries it again; any other failure, such as a kill, is due to the machine.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from moon.data import DataError
from moon.files import write_json
from moon.recipe import Recipe
from moon.run.folder import JOB, TODO, todo_of
from moon.run.images import BenchmarkImages
from moon.run.machine import cudnn_mode
from moon.run.train import train_run
from moon.score.score import score_run
from moon.training import DamagedCheckpoint, Diverged, RunLocked, locked

PERMANENT = (ValueError, DataError, Diverged, DamagedCheckpoint)  # a retry would fail again

_log = logging.getLogger("moon.grid.worker")  # __name__ is "__main__" in a worker process
Open = Callable[[Path, str, str], BenchmarkImages]


def _open(data: Path, name: str, outliers: str) -> BenchmarkImages:
    return BenchmarkImages.open(data, name, outliers=outliers)


def work(
    folder: Path,
    data: Path,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    exact: bool = True,
    open_images: Open = _open,
) -> None:
    """Train the run in this folder and score it with the detectors that `todo.json` lists."""
    try:
        with locked(folder, JOB), cudnn_mode(exact):  # from training to scoring
            recipe = Recipe.load(folder / "recipe.json")
            images = open_images(data, recipe.benchmark, recipe.outliers)
            train_run(recipe, folder, images, device=device, checkpoint_seconds=checkpoint_seconds, exact=exact)
            while detectors := todo_of(folder):
                if images.unknown:  # otherwise there is nothing to score; a later driver adds it again
                    score_run(folder, images, detectors, device=device, skip_unfit=True)
                if todo_of(folder) == detectors:  # a driver may have added more in the meantime
                    (folder / TODO).unlink()
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
    logger.addHandler(logging.StreamHandler())
    logger.setLevel(logging.INFO)


def main() -> None:
    parser = argparse.ArgumentParser(prog="moon.grid.worker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    parser.add_argument("--inexact", action="store_true")
    arguments = parser.parse_args()
    log_to_stderr()
    answers = os.dup(1)
    open_images = lru_cache(maxsize=1)(_open)
    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        with (folder / "worker.log").open("ab") as log:  # all output goes there from now on
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        settings = arguments.device, arguments.checkpoint_seconds, not arguments.inexact
        work(folder, arguments.data, *settings, open_images)
        sys.stdout.flush()
        try:
            os.write(answers, b"\n")
        except BrokenPipeError:
            return  # the driver has ended


if __name__ == "__main__":
    main()
