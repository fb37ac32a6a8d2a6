"""Kill real commands at any moment, start them again until they finish, and compare what they have written.

`python -m tests.torture.kill --minutes 5 --seed 0`

A command is killed with SIGKILL one to four times: at a time drawn from its whole duration, or as soon as a file in its
folder has appeared or changed for the n-th time. Then the same command must finish, resume from the newest checkpoint,
leave no temporary files, and write exactly what an undisturbed command writes.

Commands run in forked copies of this process, which has already imported torch. One in REAL is a new Python process
instead, so that start-up is also hit; grids and torchrun (two processes that train as one) always are. Of these, all
processes are killed together, or only the one that was started, or only one of its workers.
"""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture.common import (
    LONGEST,
    PACK,
    RECIPE,
    RUN,
    SCORE,
    TRAIN,
    Process,
    Report,
    contents,
    differing,
    fork,
    fresh,
    leftovers,
    parse,
    spawn,
    workplace,
)  # fmt: skip

REAL = 20
GRID = ["grid", *RECIPE, "--seed", "0", "1", "--detector", "msp", "--jobs", "2", "--checkpoint-seconds", "0",
        "--out", RUN]  # fmt: skip


@dataclass
class Command:
    """A command, and what it does undisturbed."""

    name: str
    argv: list[str]
    start: Callable[[list[str], Path], Process]
    after: str = ""  # the command whose result it needs
    seconds: float = 0.0
    changes: int = 0  # of its folder, as far as they were seen
    expected: dict = field(default_factory=dict)


def two_ranks(argv: list[str], folder: Path) -> Process:
    return spawn(argv, folder, ranks=2)


COMMANDS = {
    command.name: command
    for command in (
        Command("train", TRAIN, fork),
        Command("score", SCORE, fork, after="train"),
        Command("pack", PACK, fork, after="train"),
        Command("train, new process", TRAIN, spawn),
        Command("score, new process", SCORE, spawn, after="train"),
        Command("grid", GRID, spawn),
        Command("torchrun", TRAIN, two_ranks),
    )
}
FORKED, NEW = ["train", "train", "score", "pack"], ["train, new process", "score, new process", "grid", "torchrun"]


Snapshot = dict[str, tuple[int, int]]


def snapshot(folder: Path) -> Snapshot:
    """The size and time of every file."""
    found = {}
    for at, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(at, name)
            try:
                stat = os.stat(path)
                found[path] = stat.st_size, stat.st_mtime_ns
            except OSError:  # removed in the meantime
                pass
    return found


def watch(process: Process, folder: Path, seen: Snapshot, until: Callable[[float, int], bool]) -> int:
    """Count changes of the folder, from a snapshot on, until the process ends or `until(seconds, changes)`."""
    changes = 0
    while process.poll() is None and not until(time.monotonic() - process.started, changes):
        time.sleep(0.001)
        now = snapshot(folder)
        changes, seen = changes + (now != seen), now
    return changes


def family(pid: int) -> list[int]:
    """The running processes that a process has started, and those that they have started."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            state, parent = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue
        if state != "Z":
            children.setdefault(int(parent), []).append(int(name))
    found = children.get(pid, [])
    return found + [later for child in found for later in family(child)]


def kill(process: Process, whom: str, rng: random.Random) -> list[int]:
    """Send SIGKILL to all processes of a command, to the "first" or to a "worker"; returns those that still run."""
    os.kill(process.pid, signal.SIGSTOP)  # it starts no others in the meantime
    others = family(process.pid)
    victims = [process.pid, *others] if whom == "all" else [process.pid]
    if whom == "worker" and others:
        victims = [rng.choice(others)]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    if process.pid not in victims:
        os.kill(process.pid, signal.SIGCONT)
    process.wait()  # after the death of a worker, until the command ends by itself
    return [pid for pid in others if pid not in victims]


def running(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path("/proc", str(pid)).exists()]


def undisturbed(command: Command, folder: Path) -> None:
    """Run the command without kills, and keep its result."""
    place = fresh(folder / f"{command.after} done" if command.after else None, folder / f"{command.name} done")
    before = snapshot(place)
    process = command.start(command.argv, place)
    command.changes = watch(process, place, before, lambda seconds, _: seconds > LONGEST)
    if process.poll() != 0:
        sys.exit(f"kill: moon {command.name} fails undisturbed:\n{process.text()}")
    command.seconds = time.monotonic() - process.started
    command.expected = contents(place)


def newest_checkpoint(place: Path) -> int:
    """The epoch of the newest complete checkpoint of an unfinished run."""
    if (place / RUN / "result.json").exists():
        return 0
    return max((int(path.name) for path in (place / RUN / "checkpoints").glob("[0-9]*")), default=0)


def trial(command: Command, folder: Path, rng: random.Random, report: Report) -> None:
    """Kill one command a few times, let it finish, and compare."""
    place = fresh(folder / f"{command.after} done" if command.after else None, folder / "trial")
    report.counts["runs"] += 1
    story, orphans = [], []
    whom = rng.choice(["all", "first", "worker"]) if command.name in ("grid", "torchrun") else "all"
    for _ in range(rng.randint(1, 4) if command.start is fork else 1):
        before = snapshot(place)
        process = command.start(command.argv, place)
        if rng.random() < 0.5:
            moment = rng.uniform(0, command.seconds)
            process.wait(moment)
            story.append(f"after {moment:.2f} s")
        else:
            count = rng.randint(1, max(1, command.changes))
            watch(process, place, before, lambda seconds, seen, count=count: seen >= count or seconds > LONGEST)
            story.append(f"at change {count}")
        if process.poll() is not None:  # it was faster than its kill
            story[-1] += " (too late)"
            break
        orphans += kill(process, whom, rng)
        report.counts["kills"] += 1
        report.counts["kills of new processes"] += command.start is not fork
        if process.poll() is None:
            report.finding("hangs", f"moon {command.name}, after the death of a worker")
            kill(process, "all", rng)
    epoch = newest_checkpoint(place)
    how = f"moon {command.name}, {whom} killed {', '.join(story)}"
    end = time.monotonic() + LONGEST
    while True:  # processes that survived work on; the command then says so, and is started again
        survivors = running(orphans)
        process = command.start(command.argv, place)
        code = process.wait()
        if not (code and survivors and "uses this run folder" in process.text() and time.monotonic() < end):
            break
        time.sleep(0.5)
    while running(orphans) and time.monotonic() < end:
        time.sleep(0.1)
    for pid in running(orphans):
        report.finding("orphaned", f"{how}: a process that it started still runs after {LONGEST:.0f} s")
        os.kill(pid, signal.SIGKILL)
    said = process.text()
    if code != 0:
        if code is None:
            kill(process, "all", rng)
        report.finding("lost", f"{how}: then {'hangs' if code is None else f'ends with code {code}'}: {said[-300:]}")
    elif epoch and command.argv is TRAIN and not orphans and f"resuming from epoch {epoch} " not in said:
        resumed = re.search("resuming from epoch .*", said)
        report.finding("lost", f"{how}: had a checkpoint of epoch {epoch}, but {resumed and resumed[0]}")
    elif names := differing(command.expected, contents(place)):
        report.finding("different", f"{how}: {', '.join(names)}")
    elif names := leftovers(place):
        report.finding("left", f"{how}: {', '.join(names)}")
    else:
        report.counts["identical"] += 1


def main(argv: list[str] | None = None) -> int:
    arguments = parse(__doc__, argv)
    report = Report("kill")
    report.counts.update(
        dict.fromkeys(("runs", "kills", "kills of new processes", "identical", "lost", "different"), 0)
    )
    started = time.monotonic()
    with workplace(arguments) as (folder, has_time, rng):
        while has_time():
            command = COMMANDS[rng.choice(NEW if rng.randrange(REAL) == 0 else FORKED)]
            for name in filter(None, (command.after, command.name)):
                if not COMMANDS[name].expected:
                    undisturbed(COMMANDS[name], folder)
            trial(command, folder, rng, report)
    return report.finish(arguments, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
