"""Does runs of a grid, one after another, in a process of its own: `python -m moon.grid.worker`.

It is told run folders on its standard input, a line each, and answers each with a line once it has done what can be
done there. A folder has its recipe. Whether a failure is of the user's making is written into it (`failure.json`), so
that no driver tries it again; any other end, a kill among them, is the machine's.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from moon.data import DataError
from moon.files import write_json
from moon.recipe.recipe import Recipe
from moon.run.images import Bench
from moon.run.train import run
from moon.score.score import score_run
from moon.training import DamagedCheckpoint, Diverged, RunLocked, locked

JOB = "job"  # the name of a worker's lock
LEFT = "todo.json"  # in a run's folder: what is to be done once it is trained
USERS = (ValueError, DataError, Diverged, DamagedCheckpoint)  # running it again would fail again

Open = Callable[[Path, str, str], Bench]


def work(
    folder: Path,
    data: Path,
    device: str = "cpu",
    checkpoint_seconds: float = 30.0,
    exact: bool = True,
    open_bench: Open = lambda data, name, outliers: Bench.open(data, name, outliers=outliers),
) -> None:
    """Train the run, score it with the detectors that `todo.json` names, and say what went wrong."""
    try:
        with locked(folder, JOB):  # from the training to the scores
            recipe = Recipe.load(folder / "recipe.json")
            bench = open_bench(data, recipe.benchmark, recipe.outliers)
            run(recipe, folder, bench, device=device, checkpoint_seconds=checkpoint_seconds, exact=exact)
            while asked := todo_of(folder):
                if bench.unknown:  # without any there is nothing to score; once there is, the next driver asks again
                    score_run(folder, bench, asked, device=device, skip_unfit=True)
                if todo_of(folder) == asked:  # a driver may have asked for more meanwhile
                    (folder / LEFT).unlink()
    except RunLocked:
        return  # another worker does it
    except USERS as error:
        if isinstance(error, OSError):  # some are both
            raise
        write_json(folder / "failure.json", {"kind": type(error).__name__, "message": str(error)})
        print(error, file=sys.stderr)


def todo_of(folder: Path) -> list[str]:
    """The detectors that the run is still to be scored with."""
    try:
        return json.loads((folder / LEFT).read_text())["detectors"]
    except FileNotFoundError:
        return []


def main() -> None:
    parser = argparse.ArgumentParser(prog="moon.grid.worker", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--checkpoint-seconds", type=float, default=30.0)
    parser.add_argument("--inexact", action="store_true")
    arguments = parser.parse_args()
    answers = os.dup(1)

    @lru_cache(maxsize=1)
    def open_bench(data: Path, name: str, outliers: str) -> Bench:
        return Bench.open(data, name, outliers=outliers)

    for line in sys.stdin:
        folder = Path(line.rstrip("\n"))
        with (folder / "worker.log").open("ab") as log:  # from here on what is said goes there
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        how = arguments.device, arguments.checkpoint_seconds, not arguments.inexact
        work(folder, arguments.data, *how, open_bench)
        sys.stdout.flush()
        try:
            os.write(answers, b"\n")
        except BrokenPipeError:
            return  # the driver is gone


if __name__ == "__main__":
    main()
