"""A grid of runs, each done exactly once: its runs, their states, and running what is missing.

A grid is a folder of run folders, named after their recipes. It has no state of its own: what is done, running or
failed is read from the run folders. Any number of drivers may work on one grid, and any of them may be killed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from moon.errors import DataError
from moon.files import write_json
from moon.grid.todo import Todo
from moon.recipe import Recipe
from moon.recipe.variants import detector_name
from moon.records import read_json
from moon.run.folder import check_data, is_done, is_trained, load_result
from moon.run.log import read_log
from moon.score.auto import AUTO
from moon.score.files import read_summary, which_scored
from moon.suggest import as_names
from moon.training import DamagedCheckpoint, is_locked


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"  # because of its recipe or data; not retried unless asked


@dataclass
class Job:
    """One run of a grid."""

    recipe: Recipe
    folder: Path
    detectors: list[str] = field(default_factory=list)
    lacks_scores: bool = False  # whether scores are missing that `todo.json` does not list
    is_stale: bool = False  # whether it was scored on other images than those to score
    tries: int = 0
    problem: str = ""  # how its last process failed, if it did
    warnings: list[str] = field(default_factory=list)  # of its processes, each once
    _version: tuple[int, ...] = ()  # of the log when it was last read
    _known: tuple[int, float] = (0, 0.0)  # what it said

    @property
    def failure(self) -> Path:
        return self.folder / "failure.json"

    def state(self) -> State:
        if is_done(self.folder) and not self.lacks_scores:
            return State.DONE
        if self.failure.exists():
            return State.FAILED
        return State.RUNNING if is_locked(self.folder) else State.WAITING

    def reason(self) -> str:
        """What went wrong, in one line."""
        try:
            return str(read_json(self.failure)["message"])
        except (OSError, ValueError, KeyError, TypeError):
            return self.problem or (f"{self.failure}: is damaged" if self.failure.exists() else "")

    def result(self) -> dict[str, Any]:
        """The content of `result.json`; empty if it cannot be read."""
        try:
            return load_result(self.folder)
        except (DamagedCheckpoint, OSError, ValueError):
            return {}

    def threads(self) -> int | None:
        """The number of CPU threads it was trained with; None if it is not recorded."""
        return self.result().get("threads")

    def epochs_done(self) -> int:
        return self.recipe.epochs if is_trained(self.folder) else self._progress()[0]

    def seconds(self) -> float:
        """Time spent on the epochs that are done."""
        return self._progress()[1]

    def _progress(self) -> tuple[int, float]:
        """Epochs in the log and their seconds, for the display only; training reports a damaged log."""
        try:
            status = (self.folder / "log.jsonl").stat()
        except OSError:
            return 0, 0.0
        version = status.st_ino, status.st_size, status.st_mtime_ns
        if version != self._version:  # digests of all lines take long, and a display asks several times a second
            try:
                lines = read_log(self.folder)
            except (DamagedCheckpoint, OSError, ValueError):
                lines = []
            self._version, self._known = version, (len(lines), sum(line["seconds"] for line in lines))
        return self._known

    def fail(self, error: Exception) -> None:
        """Record why it cannot be done."""
        write_json(self.failure, {"kind": type(error).__name__, "message": str(error)})


class DataFacts(NamedTuple):
    """Digests of the current data of a benchmark."""

    fingerprint: dict[str, Any]  # of the training data, from `BenchmarkImages.fingerprint`
    scored: dict[str, Any]  # of the images to score, as `which_scored` returns it

    @property
    def has_unknown(self) -> bool:
        """Whether there is an unknown set to score."""
        return bool(self.scored["near"] or self.scored["far"])


class Workers(Protocol):
    """Where runs are executed: processes of this machine, or a cluster."""

    places: int  # runs at a time

    def start(self, folder: Path) -> Any:
        """Start the run in this folder and return a handle."""
        ...

    def ended(self, handle: Any) -> str | None:
        """None while it runs, "" if it succeeded, else how it failed."""
        ...

    def warnings(self, handle: Any) -> list[str]:
        """Warnings of the run, one line each, since the last call; asked for after `ended`."""
        ...

    def stop(self, handles: list[Any]) -> None:
        """Stop these runs; they can be resumed later."""
        ...


@dataclass
class Grid:
    """The runs of a grid in their folder; one whose process or machine failed is started again `retries` times."""

    folder: Path
    jobs: list[Job] = field(default_factory=list)
    retries: int = 3

    @classmethod
    def of(
        cls,
        folder: Path,
        recipes: Iterable[Recipe],
        detectors: str | Sequence[str] | Mapping[Recipe, Sequence[str]] = (),
        retries: int = 3,
        near: str | Sequence[str] = (),
        far: str | Sequence[str] = (),
    ) -> Grid:
        """Create a grid from the current state of the run folders; nothing is written.

        `detectors` are those to score with, for all runs or by recipe; `near` and `far` are unknown sets to score in
        place of the benchmarks'.
        """
        given = {group: list(as_names(names)) for group, names in (("near", near), ("far", far)) if names}
        jobs = []
        for recipe in recipes:
            wanted = as_names(detectors[recipe] if isinstance(detectors, Mapping) else detectors)
            job = Job(recipe, folder / recipe.name, list(map(detector_name, wanted)))
            names, scored = scored_with(job.folder)
            job.is_stale = bool(wanted) and any(scored.get(group) != sets for group, sets in given.items())
            job.lacks_scores = job.is_stale or not set(job.detectors) <= set(names)
            jobs.append(job)
        return cls(folder, jobs, retries)

    @classmethod
    def plan(
        cls,
        folder: Path,
        recipes: Iterable[Recipe],
        detectors: str | Sequence[str] | Mapping[Recipe, Sequence[str]] = (),
        retries: int = 3,
        facts: Callable[[Recipe], DataFacts] | None = None,
        near: str | Sequence[str] = (),
        far: str | Sequence[str] = (),
    ) -> Grid:
        """Like `of`, but also create missing run folders and write into each what remains to be done.

        `facts` returns digests of the current data of a recipe. Runs on other data raise a DataError; scores on other
        images are computed again.
        """
        grid = cls.of(folder, recipes, detectors, retries, near, far)
        for job in grid.jobs:
            current = None if facts is None else facts(job.recipe)
            job.folder.mkdir(parents=True, exist_ok=True)
            if not (job.folder / "recipe.json").exists():
                write_json(job.folder / "recipe.json", job.recipe.to_json())
            try:
                if current is not None:
                    check_data(job.folder, current.fingerprint)
                todo = Todo.read(job.folder)
            except DataError:
                raise
            except (DamagedCheckpoint, ValueError) as error:  # a file of this run; the others are done
                job.fail(error)
                continue
            names, scored = scored_with(job.folder)
            job.is_stale |= current is not None and current.has_unknown and bool(names) and scored != current.scored
            if job.lacks_scores or job.is_stale or todo.detectors:
                # Scores of other detectors on the same images stay as they are: their options may have been tuned.
                wanted = [*names, *job.detectors] if job.is_stale else [d for d in job.detectors if d not in names]
                remaining = Todo(tuple(dict.fromkeys([*todo.detectors, *wanted])), as_names(near), as_names(far))
                if remaining != todo:
                    remaining.write(job.folder)
            job.lacks_scores = False  # `todo.json` lists them now
        return grid

    def states(self) -> dict[str, State]:
        return {job.recipe.name: job.state() for job in self.jobs}

    def forget_failures(self) -> None:
        """Delete the records of failed runs, so that they are tried again."""
        for job in self.jobs:
            job.failure.unlink(missing_ok=True)

    def run(self, workers: Workers, watch: Callable[[Grid], object] = lambda _: None, poll: float = 0.1) -> None:
        """Run what is missing, and call `watch` with the grid every `poll` seconds.

        A run that another driver holds is waited for; a killed one resumes from its checkpoint. Runs that failed
        because of their recipe or data are skipped; those whose process failed are tried again.
        """
        active: dict[str, tuple[Job, Any]] = {}
        try:
            while True:
                for name, (job, handle) in list(active.items()):
                    problem = workers.ended(handle)
                    job.warnings += [text for text in workers.warnings(handle) if text not in job.warnings]
                    if problem is not None:
                        del active[name]
                        job.problem = problem
                        job.tries += bool(problem)
                states = self.states()
                open_jobs = [job for job in self.jobs if states[job.recipe.name] in (State.WAITING, State.RUNNING)]
                open_jobs = [job for job in open_jobs if job.recipe.name in active or job.tries <= self.retries]
                for job in open_jobs:
                    is_free = len(active) < workers.places and job.recipe.name not in active
                    if is_free and states[job.recipe.name] is State.WAITING:
                        try:
                            active[job.recipe.name] = job, workers.start(job.folder)
                        except ValueError as error:  # a file of this run
                            job.fail(error)
                watch(self)
                if not open_jobs and not active:
                    return
                time.sleep(poll)
        finally:
            workers.stop([handle for _, handle in active.values()])

    def seconds_left(self, places: int) -> float | None:
        """An estimate from the mean time per epoch so far; None before the first epoch."""
        states = self.states()
        open_jobs = [job for job in self.jobs if states[job.recipe.name] in (State.WAITING, State.RUNNING)]
        started = [job for job in self.jobs if job.epochs_done()]
        epochs = sum(job.epochs_done() for job in started)
        if not epochs:
            return None
        left = sum(job.recipe.epochs - job.epochs_done() for job in open_jobs)
        return left * sum(job.seconds() for job in started) / epochs / max(1, min(places, len(open_jobs)))


def scored_with(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The detectors that the run was scored with or that cannot be used with it, and which images were scored.

    `auto` is among them if it has chosen one of them.
    """
    if (found := read_summary(folder)) is None:
        return [], {}
    needed = {*found.get("near", ()), *found.get("far", ())}  # a detector may have scores of other sets only
    names = [name for name, each in found["detectors"].items() if needed <= each["sets"].keys()]
    names += found.get("left_out", ())
    auto = [AUTO] if AUTO in found and found[AUTO]["detector"] in names else []
    return [*names, *auto], which_scored(found)
