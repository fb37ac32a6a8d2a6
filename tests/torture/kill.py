"""Kill real commands at any moment, start them again until they finish, and compare what they have written.

`python -m tests.torture.kill --minutes 5 --seed 0`

A command is killed with SIGKILL one to four times: at a time drawn from its whole duration, or as soon as a file in its
folder has appeared or changed for the n-th time. Then the same command must finish, resume from the newest checkpoint,
leave no temporary files, and write exactly what an undisturbed command writes.

Half of the kills of `moon train` wait for a phase instead (see `tests/torture/phases.py`), so that mask updates, votes,
the election and writes are hit although they are short. The report counts the phases in which processes died.

Commands run in forked copies of this process, which has already imported torch. One in REAL is a new Python process
instead, so that its start is also hit, and must write the same; grids and torchrun (two processes that train as one)
always are. Of these, all processes are killed together, or only the one that was started, or only one of its workers.

`moon serve` writes nothing; what is expected of it is in `tests/torture/serve.py`.
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

from tests.torture import phases, serve
from tests.torture.common import (
    LONGEST,
    PACK,
    RECIPE,
    RUN,
    SCORE,
    TRAIN,
    Process,
    contents,
    differing,
    family,
    fork,
    fresh,
    leftovers,
    missing,
    spawn,
)  # fmt: skip
from tests.torture.workers import Report, Worker, in_parallel, parse, work, workplace

REAL = 8
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
    phases: dict[str, int] = field(default_factory=dict)  # how often each began
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
        Command("pack, new process", PACK, spawn, after="train"),
        Command("grid", GRID, spawn),
        Command("torchrun", TRAIN, two_ranks),
    )
}
SERVERS = {name: serve.Server(name, is_forked="," not in name) for name in ("serve", "serve, new process")}
FORKED = ["train", "train", "score", "pack", "serve"]
NEW = ["train, new process", "score, new process", "pack, new process", "grid", "torchrun", "serve, new process"]


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


def watch(
    process: Process, folder: Path, seen: Snapshot, until: Callable[[float, int], bool], interval: float = 0.001
) -> int:
    """Count changes of the folder, from a snapshot on, until the process ends or `until(seconds, changes)`."""
    changes = 0
    while process.poll() is None and not until(time.monotonic() - process.started, changes):
        time.sleep(interval)
        now = snapshot(folder)
        changes, seen = changes + (now != seen), now
    return changes


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


def start(command: Command, place: Path) -> Process:
    """Start it; a forked one tells its phases."""
    phases.PHASES.clear()
    return command.start(command.argv, place)


def undisturbed(command: Command, folder: Path) -> Command:
    """Run the command without kills, and keep its result."""
    place = fresh(folder / f"{command.after} done" if command.after else None, folder / f"{command.name} done")
    before = snapshot(place)
    process = start(command, place)
    command.changes = watch(process, place, before, lambda seconds, _: seconds > LONGEST)
    if process.poll() != 0:
        sys.exit(f"kill: moon {command.name} fails undisturbed:\n{process.text()}")
    command.seconds = time.monotonic() - process.started
    command.expected, command.phases = contents(place), phases.PHASES.counted()
    return command


def prepare(folder: Path, report: Report, chosen: set[str]) -> dict[str, Command | serve.Server]:
    """Run commands without kills, those in `chosen` and those whose results they need. A new process must write, or
    answer, the same as a forked one."""
    for name in (*COMMANDS, *SERVERS):
        if name in chosen and (reason := missing(name.partition(",")[0])):
            report.skip(name, reason)
    needed = chosen - report.skipped.keys()
    needed |= {"pack"} if needed & SERVERS.keys() else set()
    needed |= {COMMANDS[name].after for name in needed & COMMANDS.keys()} - {""}
    found: dict[str, Command | serve.Server] = {}
    for name, command in COMMANDS.items():
        if name in needed and command.start is fork:
            found[name] = undisturbed(command, folder)
    rest = [lambda name=name: undisturbed(COMMANDS[name], folder) for name in COMMANDS if name in needed - found.keys()]
    rest += [lambda name=name: serve.undisturbed(SERVERS[name], folder) for name in SERVERS if name in needed]
    for command in in_parallel(rest, folder):
        if not isinstance(command, Command | serve.Server):
            sys.exit(f"kill: a command without kills: {command}")
        found[command.name] = command
    for name in found.keys() & {f"{name}, new process" for name in found}:
        if names := differing(found[name.partition(",")[0]].expected, found[name].expected):
            report.finding("different", f"moon {name}, not disturbed: {', '.join(names)}")
    return found


def newest_checkpoint(place: Path) -> int:
    """The epoch of the newest complete checkpoint of an unfinished run."""
    if (place / RUN / "result.json").exists():
        return 0
    return max((int(path.name) for path in (place / RUN / "checkpoints").glob("[0-9]*")), default=0)


def trial(command: Command, done: Path, place: Path, rng: random.Random, report: Report) -> None:
    """Kill one command a few times, let it finish, and compare."""
    place = fresh(done / f"{command.after} done" if command.after else None, place)
    report.counts["runs"] += 1
    story, orphans = [], []
    whom = rng.choice(["all", "first", "worker"]) if command.name in ("grid", "torchrun") else "all"
    for _ in range(rng.randint(1, 4) if command.start is fork else 1):
        before = snapshot(place)
        process = start(command, place)
        way = rng.random()
        if command.name == "train" and way < 0.5:
            phase, delay = rng.choice(phases.TARGETS), rng.expovariate(500)
            count = rng.randint(1, max(1, command.phases[phase]))
            watch(process, place, before, lambda seconds, _, at=(phase, count): phases.PHASES.reached(*at), 0.0002)
            process.wait(delay)
            story.append(f"at {phase} {count} + {1000 * delay:.1f} ms")
        elif way < 0.75:
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
        changed = snapshot(place) != before
        orphans += kill(process, whom, rng)
        report.counts["kills"] += 1
        phase = phases.PHASES.now() if command.start is fork else "later" if changed else "before the first file"
        report.counts[f"{command.name}, {phase}"] += 1
        if process.poll() is None:
            report.finding("hangs", f"moon {command.name}, after the death of a worker")
            kill(process, "all", rng)
    epoch = newest_checkpoint(place)
    how = f"moon {command.name}, {whom} killed {', '.join(story)}"
    end = time.monotonic() + LONGEST
    while True:  # processes that survived work on; the command then says so, and is started again
        survivors = running(orphans)
        process = start(command, place)
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
    verbs = list(dict.fromkeys(name.partition(",")[0] for name in FORKED + NEW))
    arguments = parse(__doc__, "kills", argv, verbs)
    chosen = {name for name in FORKED + NEW if name.partition(",")[0] in (arguments.only or verbs)}
    report = Report("kill")
    report.counts.update(dict.fromkeys(("runs", "kills", "identical", "lost", "different"), 0))
    started = time.monotonic()
    with workplace(arguments) as folder:
        phases.install()
        commands = prepare(folder, report, chosen)
        forked, new = ([name for name in names if name in chosen & commands.keys()] for names in (FORKED, NEW))
        if not forked + new:
            sys.exit("kill: none of the commands can be tried here")

        def do(worker: Worker) -> None:
            phases.PHASES.renew()
            place = worker.folder / "trial"
            for number, rng in worker.turns():
                command = commands[rng.choice((new if number % REAL == 0 else forked) or forked or new)]
                if isinstance(command, Command):
                    trial(command, folder, place, rng, worker.report)
                else:
                    serve.trial(command, folder, place, serve.free_port(), rng, worker.report)

        work(arguments, folder, started, report, do)
    return report.finish(arguments, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
