"""Many runs, each done exactly once: which there are, how they stand, and doing what is missing.

A grid is a folder of run folders, named after their recipes. It has no state of its own: what is done, running or
failed is read from the run folders, so any number of drivers may work on one grid, and any of them may be killed.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from moon.files import write_json
from moon.grid.worker import JOB, todo_of
from moon.recipe.recipe import Recipe
from moon.run.train import check_data, read_log
from moon.score.score import read_summary, which_scored
from moon.training import is_locked


class State(StrEnum):
    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    FAILED = "failed"  # of the user's making: not tried again by itself


@dataclass
class Job:
    """One run of a grid."""

    recipe: Recipe
    folder: Path
    detectors: list[str] = field(default_factory=list)
    lacks: bool = False  # scores that the folder does not say are to be made
    tries: int = 0
    problem: str = ""  # what the machine did to it last

    @property
    def failure(self) -> Path:
        return self.folder / "failure.json"

    def state(self) -> State:
        if is_done(self.folder) and not self.lacks:
            return State.DONE
        if self.failure.exists():
            return State.FAILED
        held = is_locked(self.folder) or is_locked(self.folder, JOB)
        return State.RUNNING if held else State.WAITING

    def why(self) -> str:
        """What went wrong, in a line."""
        try:
            return json.loads(self.failure.read_text())["message"]
        except (OSError, ValueError, KeyError):
            return self.problem

    def epochs_done(self) -> int:
        return self.recipe.epochs if (self.folder / "result.json").exists() else len(read_log(self.folder))

    def seconds(self) -> float:
        """Spent on the epochs that are done."""
        return sum(line["seconds"] for line in read_log(self.folder))


def is_done(folder: Path) -> bool:
    """Whether the run is trained and what was asked for after it is there; `todo.json` says what that is."""
    return (folder / "result.json").exists() and not (folder / "todo.json").exists()


class Facts(NamedTuple):
    """What a benchmark's data are now."""

    fingerprint: dict[str, Any]  # of what is trained on
    images: dict[str, Any]  # what tells those that are scored from others


class Workers(Protocol):
    """Where runs are done: processes of this machine, or a cluster."""

    places: int  # runs at a time

    def start(self, folder: Path) -> Any:
        """Begin the run in this folder; what is given back stands for it."""
        ...

    def ended(self, handle: Any) -> str | None:
        """None while it runs; how it ended, or nothing if well."""
        ...

    def stop(self, handles: list[Any]) -> None:
        """Stop these, so that they can go on later."""
        ...


@dataclass
class Grid:
    """The runs of a grid in their folder."""

    folder: Path
    jobs: list[Job] = field(default_factory=list)
    retries: int = 3  # after failures of the machine

    @classmethod
    def of(
        cls,
        folder: Path,
        recipes: Iterable[Recipe],
        detectors: Sequence[str] | Mapping[Recipe, Sequence[str]] = (),
        retries: int = 3,
    ) -> Grid:
        """The runs as they stand, to be scored by these detectors, all or each by its own; nothing is written."""
        jobs = []
        for recipe in recipes:
            wanted = detectors[recipe] if isinstance(detectors, Mapping) else detectors
            job = Job(recipe, folder / recipe.name, list(wanted))
            job.lacks = not set(wanted) <= set(scored(job.folder)[0])
            jobs.append(job)
        return cls(folder, jobs, retries)

    @classmethod
    def plan(
        cls,
        folder: Path,
        recipes: Iterable[Recipe],
        detectors: Sequence[str] | Mapping[Recipe, Sequence[str]] = (),
        retries: int = 3,
        facts: Callable[[Recipe], Facts] | None = None,
    ) -> Grid:
        """The same, with the run folders that are missing made and what is left to do written into them.

        `facts` tells of the data that a recipe has now. A run on other data is refused; scores of other images are made
        again.
        """
        grid = cls.of(folder, recipes, detectors, retries)
        for job in grid.jobs:
            known = None if facts is None else facts(job.recipe)
            if known is not None:
                check_data(job.folder, known.fingerprint)
            job.folder.mkdir(parents=True, exist_ok=True)
            if not (job.folder / "recipe.json").exists():
                write_json(job.folder / "recipe.json", job.recipe.to_json())
            names, images = scored(job.folder)
            is_stale = known is not None and bool(names) and images != known.images
            asked = todo_of(job.folder)
            if job.lacks or is_stale or asked:
                everything = list(dict.fromkeys([*asked, *names, *job.detectors]))
                if everything != asked:
                    write_json(job.folder / "todo.json", {"detectors": everything})
            job.lacks = False  # the folder says it now
        return grid

    def states(self) -> dict[str, State]:
        return {job.recipe.name: job.state() for job in self.jobs}

    def forget_failures(self) -> None:
        for job in self.jobs:
            job.failure.unlink(missing_ok=True)

    def run(self, workers: Workers, watch: Callable[[Grid], object] = lambda _: None, poll: float = 0.1) -> None:
        """Do what is missing. A run that another driver holds is waited for; a killed one goes on from its checkpoint.

        Failures of the user's making are left where they are; those of the machine are tried again.
        """
        active: dict[str, tuple[Job, Any]] = {}
        try:
            while True:
                for name, (job, handle) in list(active.items()):
                    if (problem := workers.ended(handle)) is not None:
                        del active[name]
                        job.problem = problem
                        job.tries += bool(problem)
                states = self.states()
                open_jobs = [job for job in self.jobs if states[job.recipe.name] in (State.WAITING, State.RUNNING)]
                open_jobs = [job for job in open_jobs if job.recipe.name in active or job.tries <= self.retries]
                for job in open_jobs:
                    free = len(active) < workers.places and job.recipe.name not in active
                    if free and states[job.recipe.name] is State.WAITING:
                        active[job.recipe.name] = job, workers.start(job.folder)
                watch(self)
                if not open_jobs and not active:
                    return
                time.sleep(poll)
        finally:
            workers.stop([handle for _, handle in active.values()])

    def seconds_left(self, places: int) -> float | None:
        """By the time an epoch took so far, or None before the first one ended."""
        states = self.states()
        open_jobs = [job for job in self.jobs if states[job.recipe.name] in (State.WAITING, State.RUNNING)]
        done = [job for job in self.jobs if job.epochs_done()]
        epochs = sum(job.epochs_done() for job in done)
        if not epochs:
            return None
        left = sum(job.recipe.epochs - job.epochs_done() for job in open_jobs)
        return left * sum(job.seconds() for job in done) / epochs / max(1, min(places, len(open_jobs)))


def scored(folder: Path) -> tuple[list[str], dict[str, Any]]:
    """The detectors that the run was scored with, or found not to fit, and what tells its images from others."""
    if (found := read_summary(folder)) is None:
        return [], {}
    return [*found["detectors"], *found["left_out"]], which_scored(found)


@dataclass
class _Process:
    """A worker process; it takes one run after another."""

    popen: subprocess.Popen[bytes]
    device: str

    def tell(self, folder: Path) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{folder}\n".encode())
        self.popen.stdin.flush()

    def answered(self) -> bool:
        """Whether it has done what it was told; it may also have ended."""
        assert self.popen.stdout is not None
        return bool(select.select([self.popen.stdout], [], [], 0)[0]) and bool(os.read(self.popen.stdout.fileno(), 1))


@dataclass
class Processes:
    """Runs as processes of this machine, each with its share of the cores; on GPUs in turn, also several on one.

    A process that has done its run takes the next one: libraries, data and compiled kernels are loaded once.
    """

    places: int
    data: Path
    devices: list[str]
    threads: int
    checkpoint_seconds: float = 30.0
    exact: bool = True
    environment: dict[str, str] = field(default_factory=dict)  # of the processes, besides the present one
    _idle: list[_Process] = field(default_factory=list)
    _all: list[_Process] = field(default_factory=list)

    def start(self, folder: Path) -> _Process:
        while self._idle:
            process = self._idle.pop()
            with suppress(BrokenPipeError):  # it has ended meanwhile
                process.tell(folder)
                return process
        self._all = [process for process in self._all if process.popen.poll() is None]
        busy = [process.device for process in self._all]
        device = min(self.devices, key=busy.count)  # the first of those with the fewest
        command = [sys.executable, "-m", "moon.grid.worker", "--data", str(self.data), "--device", device]
        command += ["--checkpoint-seconds", str(self.checkpoint_seconds), *["--inexact"] * (not self.exact)]
        # A session of its own: Ctrl-C reaches the driver, which stops its workers in an orderly way.
        with (folder / "worker.log").open("ab") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=os.environ | self.environment | {"OMP_NUM_THREADS": str(self.threads)},
            )
        process = _Process(popen, device)
        self._all.append(process)
        process.tell(folder)
        return process

    def ended(self, handle: _Process) -> str | None:
        if handle.answered():
            self._idle.append(handle)
            return ""
        code = handle.popen.poll()
        if code is None:
            return None
        if code == 0:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"worker ended with code {code}"

    def stop(self, handles: list[_Process]) -> None:
        processes = [handle.popen for handle in [*handles, *self._idle]]
        self._idle.clear()
        for popen in processes:
            if popen.poll() is None:
                popen.terminate()  # a run survives any end; Ctrl-C's own signal may be ignored in the background
        for popen in processes:
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            for pipe in (popen.stdin, popen.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()
