"""Crash a command at every operation on files, one after another, and let the same command finish.

`python -m tests.torture.crash --minutes 5 --seed 0`

Traced runs of `moon train`, `moon score`, `moon pack` and `moon report` list every operation on files: open, write,
fsync, rename, remove, mkdir. Then, at each of them, in a new copy of the run:

    before, after   the process is killed before or after the operation
    torn            only half of the bytes are written, then it is killed
    power           it is killed, and of what was written to each file since it was last synced only half remains
    full, broken    the operation fails with "no space left" or "input/output error"

Afterwards the same command must finish, leave no temporary files, and write exactly what an undisturbed one writes. A
failed operation must end the command with one line and exit code 7 (full) or 3 (broken), or change nothing. With enough
`--minutes` all points are tried; otherwise a random part of them.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import random
import re
import signal
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.common import (
    PACK,
    REPORT,
    SCORE,
    TRAIN,
    Process,
    contents,
    differing,
    fork,
    fresh,
    leftovers,
    missing,
)  # fmt: skip
from tests.torture.workers import Report, Worker, parse, work, workplace

KILLS, ERRORS = ("before", "after", "torn", "power"), {"full": errno.ENOSPC, "broken": errno.EIO}
CODES = {"full": 7, "broken": 3}
TRACE = "trace.txt"
REAL_OPEN = os.open
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass
class Tracer:
    """Counts operations on files under a folder, and disturbs one of them.

    An operation is identified by what it does, to which file, and for which time, not by its number: the threads that
    write checkpoints and TensorBoard files make the order vary.
    """

    folder: Path
    point: str = ""
    action: str = ""
    log: int | None = None  # a file descriptor, to list the operations
    seen: Counter[str] = field(default_factory=Counter)
    unsynced: dict[tuple[int, int], int] = field(default_factory=dict)  # a descriptor of each file by its inode
    safe: dict[tuple[int, int], int] = field(default_factory=dict)  # how many bytes of each file were synced
    guard: Any = field(default_factory=threading.RLock)

    def operation(self, name: str, where: str | int, do: Any, half: Any = None) -> Any:
        """Do something to a file, unless it is the point to disturb."""
        is_open = isinstance(where, int)
        path = os.path.realpath(f"/proc/self/fd/{where}") if is_open else os.path.abspath(os.fsdecode(where))
        if not path.startswith(f"{self.folder}{os.sep}"):
            return do()
        with self.guard:
            label = (
                f"{name} {re.sub('[.](moon-.{8}|.*[0-9a-f]{8})[.]part', '.part', path[len(str(self.folder)) + 1 :])}"
            )
            label = re.sub("tfevents.*", "tfevents", label)
            self.seen[label] += 1
            label = f"{label} #{self.seen[label]}"
            if self.log is not None:
                os.write(self.log, f"{label}\n".encode())
            if label != self.point:
                return do()
            if self.action in ERRORS:
                raise OSError(ERRORS[self.action], os.strerror(ERRORS[self.action]), path)
            if self.action == "torn" and half is not None:
                half()
            elif self.action == "after":
                do()
            elif self.action == "power":
                for inode, descriptor in self.unsynced.items():
                    size = os.fstat(descriptor).st_size
                    safe = min(size, self.safe.get(inode, 0))
                    os.ftruncate(descriptor, safe + (size - safe) // 2)
            os.kill(os.getpid(), signal.SIGKILL)

    def wrote(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        inode = stat.st_dev, stat.st_ino
        if stat.st_size == 0 or inode not in self.safe:  # a new file, or one of an earlier process
            self.safe[inode] = stat.st_size
        if inode not in self.unsynced:
            # Opened again: a duplicate would share its lock, and keep it.
            self.unsynced[inode] = REAL_OPEN(f"/proc/self/fd/{descriptor}", os.O_WRONLY)

    def synced(self, descriptor: int) -> None:
        stat = os.fstat(descriptor)
        inode = stat.st_dev, stat.st_ino
        self.safe[inode] = stat.st_size
        if (copy := self.unsynced.pop(inode, None)) is not None:
            os.close(copy)


def install(tracer: Tracer) -> None:
    """Replace the functions of Python that change files, in this process."""
    real_open, real_fsync, real_write = io.open, os.fsync, os.write

    class File(io.FileIO):
        """A file whose writes are operations."""

        def write(self, data: Any) -> int:
            view = memoryview(data).cast("B")

            def write(part: memoryview) -> int:
                tracer.wrote(self.fileno())
                return io.FileIO.write(self, part)

            half = len(view) // 2
            return tracer.operation("write", self.fileno(), lambda: write(view), lambda: write(view[:half]))

    def open_(file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None,
              newline: Any = None, closefd: bool = True, opener: Any = None) -> Any:  # fmt: skip
        if not set(mode) & set("wax+") or buffering == 0 or opener is not None:
            return real_open(file, mode, buffering, encoding, errors, newline, closefd, opener)
        raw_mode = mode.replace("b", "").replace("t", "")
        if isinstance(file, int):
            raw = File(file, raw_mode, closefd)
        else:
            raw = tracer.operation("open", os.fspath(file), lambda: File(file, raw_mode))
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding, errors, newline)

    def os_open(path: Any, flags: int, *rest: Any, **more: Any) -> int:
        if not flags & WRITING or more.get("dir_fd") is not None:
            return REAL_OPEN(path, flags, *rest, **more)
        return tracer.operation("open", os.fspath(path), lambda: REAL_OPEN(path, flags, *rest, **more))

    def fsync(file: Any) -> None:
        descriptor = file if isinstance(file, int) else file.fileno()

        def sync() -> None:
            real_fsync(descriptor)
            tracer.synced(descriptor)

        tracer.operation("fsync", descriptor, sync)

    def os_write(descriptor: int, data: Any) -> int:
        view = memoryview(data).cast("B")

        def write(part: memoryview) -> int:
            tracer.wrote(descriptor)
            return real_write(descriptor, part)

        half = len(view) // 2
        return tracer.operation("write", descriptor, lambda: write(view), lambda: write(view[:half]))

    def on_path(name: str) -> None:
        real = getattr(os, name)

        def replacement(path: Any, *rest: Any, **more: Any) -> Any:
            at = more.get("dir_fd")
            where = os.fspath(path) if at is None else os.path.join(os.path.realpath(f"/proc/self/fd/{at}"), path)
            return tracer.operation(name, where, lambda: real(path, *rest, **more))

        setattr(os, name, replacement)

    io.open = builtins.open = open_  # pyright: ignore[reportAttributeAccessIssue]
    os.open, os.fsync = os_open, fsync  # pyright: ignore[reportAttributeAccessIssue]
    if tracer.log is None:
        os.write = os_write  # pyright: ignore[reportAttributeAccessIssue]
    for name in ("rename", "replace", "unlink", "remove", "rmdir", "mkdir", "truncate", "link", "symlink"):
        on_path(name)


def disturbed(argv: list[str], place: Path, point: str, action: str) -> Process:
    """Start a command that is disturbed at a point."""
    return fork(argv, place, lambda: install(Tracer(place, point, action)))


def trial(argv: list[str], before: Path | None, expected: dict, point: str, action: str, place: Path,
          report: Report) -> None:  # fmt: skip
    """Disturb one operation, let the same command finish, and compare."""
    place, how = fresh(before, place), f"moon {argv[0]}, {action} at {point}"
    process = disturbed(argv, place, point, action)
    code, said = process.wait(), process.text()
    report.counts["points"] += 1
    report.counts[f"{argv[0]}, {action}"] += 1
    if action in ERRORS and code not in (0, CODES[action]):
        report.finding("wrong code", f"{how}: {code}, not {CODES[action]}: {said[-300:]}")
    elif action in ERRORS and "Traceback" in said:
        report.finding("traceback", f"{how}: {said[-300:]}")
    elif action in ERRORS and code == 0 and (names := differing(expected, contents(place))):
        report.finding("silent", f"{how}: code 0, but {', '.join(names)}")
    elif action in KILLS and code not in (0, -signal.SIGKILL):
        report.finding("wrong code", f"{how}: {code}: {said[-300:]}")
    report.counts["killed" if code == -signal.SIGKILL else "refused" if code else "not affected"] += 1
    process = fork(argv, place)
    code = process.wait()
    if code != 0:
        report.finding("lost", f"{how}: then {'hangs' if code is None else f'code {code}'}: {process.text()[-300:]}")
        if code is None:
            process.kill()
    elif names := differing(expected, contents(place)):
        report.finding("different", f"{how}: {', '.join(names)}")
    elif names := leftovers(place):
        report.finding("left", f"{how}: {', '.join(names)}")
    else:
        report.counts["identical"] += 1


def chosen(labels: list[str], rng: random.Random) -> list[str]:
    """All operations, but of many equal ones on one file, such as the writes of an archive, only the first and the
    last and three others."""
    equal: dict[str, list[str]] = {}
    for label in labels:
        equal.setdefault(label.partition(" #")[0], []).append(label)
    return [
        label
        for found in equal.values()
        for label in ([found[0], *rng.sample(found[1:-1], 3), found[-1]] if len(found) > 5 else found)
    ]


Point = tuple[list[str], Path | None, dict, str, str]  # a command, the folder before it, and what it writes; ...


def traced(folder: Path, seed: int, report: Report) -> list[Point]:
    """All points, in random order. Each command works in what the one before it has left."""
    points: list[Point] = []
    before, rng = None, random.Random(seed)
    for command in (TRAIN, SCORE, PACK, REPORT):
        if reason := missing(command[0]):
            report.skip(command[0], reason)
            continue
        place = fresh(before, folder / f"{command[0]} done")
        log = os.open(folder / TRACE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        process = fork(command, place, lambda place=place, log=log: install(Tracer(place, log=log)))
        os.close(log)
        if process.wait() != 0:
            sys.exit(f"crash: moon {command[0]} fails undisturbed:\n{process.text()}")
        expected = contents(place)
        for label in chosen((folder / TRACE).read_text().splitlines(), rng):
            actions = ["before", "after", "power", *ERRORS] + ["torn"] * label.startswith("write")
            points += [(command, before, expected, label, action) for action in actions]
        before = place
    rng.shuffle(points)
    return points


def main(argv: list[str] | None = None) -> int:
    arguments = parse(__doc__, "points", argv)
    report = Report("crash")
    report.counts.update(dict.fromkeys(("points", "of", "killed", "refused", "not affected", "identical", "lost"), 0))
    started = time.monotonic()
    with workplace(arguments) as folder:
        points = traced(folder, arguments.seed, report)
        report.counts["of"] = len(points)

        def do(worker: Worker) -> None:
            for number, _ in worker.turns():
                if number >= len(points):
                    break
                trial(*points[number], worker.folder / "trial", worker.report)

        work(arguments, folder, started, report, do)
    return report.finish(arguments, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
