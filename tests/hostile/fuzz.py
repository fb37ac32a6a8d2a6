"""Change valid files at random, read them, and count what happens.

    python tests/hostile/fuzz.py --count 100000 --jobs 16 --summary fuzz.json

The seeds are the files of the corpus that must be accepted, and valid tensors, logs and records. One to four changes
are made to each: flipped bits, numbers replaced by extreme ones (binary of 1 to 8 bytes, and in text), parts removed,
doubled, exchanged, inserted, or taken from another seed of the same reader. Number n of a seed is always the same file;
worker i of N reads the files i, i + N, ... Each reads many files in one process, with 3 GiB of address space, and is
started again after a crash. A file may be accepted or refused with an error that the reader documents; everything else
is a finding, and `--keep FOLDER` keeps its file.
"""

from __future__ import annotations

import argparse
import json
import logging
import mmap
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import corpus
import numpy as np
import reading
from cases import Case, file
from mutations import change

from moon.errors import DamagedCheckpoint, DataError

MEMORY, SECONDS, STUCK = 3 * 2**30, 10.0, 60.0  # STUCK: seconds without progress, although no processor time is used
REFUSED = (DataError, DamagedCheckpoint)  # what readers document; those of JSON: a ValueError
JSON = ("json", "record")


@dataclass(frozen=True)
class Seed:
    """A valid file: how it is read, the file to change, and the files of its folder."""

    name: str
    reader: str
    target: str
    path: str
    files: dict[str, bytes]


def seeds(folder: Path) -> list[Seed]:
    """The valid files of the corpus, and those of runs."""
    found = []
    for number, case in enumerate([*corpus.all_cases(), *_run_files()]):
        is_ordinary = case.refused is None and not case.either and not case.environment
        if (
            not is_ordinary or case.reader in ("folders", "packed network") or "million" in case.name
        ):  # the last are slow
            continue
        place = folder / str(number)
        root, path = corpus.write(case, place)
        files = {str(p.relative_to(root)): p.read_bytes() for p in sorted(root.rglob("*"))
                 if p.is_file() and not p.is_symlink() and p.stat().st_size < 200_000}  # fmt: skip
        if sum(map(len, files.values())) > 400_000 or any(p.is_symlink() for p in root.rglob("*")):
            continue
        found += [Seed(f"{case.name} {name}", case.reader, name, path, files) for name in files]
    return found


def _run_files() -> list[Case]:
    from safetensors.numpy import save

    record = {"accuracy": 0.5, "names": ["a", "b"], "nested": {"x": [1, 2.5, None, True]}}
    tensors = save({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, bool), "c": np.zeros(0)})
    return [
        Case("record", "record", file("result.json", json.dumps(record, indent=1).encode())),
        Case("tensors", "tensors", file("model.safetensors", tensors)),
    ]


def read(seed: Seed, root: Path) -> None:
    path = root / seed.path
    if seed.reader == "record":
        from moon.records import read_record

        read_record(path)
    elif seed.reader == "tensors":
        from moon.training.checkpoint import load_tensors

        load_tensors(path)
    else:
        reading._read(seed.reader, path)


class Worker:
    """A process that reads its share of the files. What it has counted is in memory that it shares with the tool."""

    def __init__(self, index: int, jobs: int, count: int, seed: int, found: list[Seed], folder: Path) -> None:
        self.index, self.jobs, self.count, self.seed, self.found, self.folder = index, jobs, count, seed, found, folder
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)
        self.next, self.pid, self.moved = index, 0, time.monotonic()
        struct.pack_into("<q", self.memory, 0, index)

    def number(self) -> int:
        return struct.unpack_from("<q", self.memory, 0)[0]

    def make(self, number: int) -> tuple[Seed, bytes]:
        rng = random.Random(f"{self.seed} {number}")
        seed = self.found[number % len(self.found)]
        others = [other.files[other.target] for other in self.found if other.reader == seed.reader and other != seed]
        return seed, change(seed.files[seed.target], others, rng)

    def start(self) -> None:
        sys.stdout.flush()
        self.pid, self.moved = os.fork(), time.monotonic()
        if self.pid == 0:
            code = 1
            try:
                code = self.run()
            finally:
                os._exit(code)

    def run(self) -> int:
        """Read files until all are done, or more than 1 GB was used: then the exit code is 3."""
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        root = self.folder / f"worker {self.index}" / "root"
        root.mkdir(parents=True, exist_ok=True)
        events: list[str] = []
        inside = [str(root), *map(os.path.realpath, reading._OWN), str(Path(corpus.SOURCE)), "/dev/null"]
        watching = False

        def watch(event: str, arguments: tuple[Any, ...]) -> None:
            if not watching:
                return
            if event in reading._STARTS:
                events.append(f"executed: {event}")
            elif event == "open" and isinstance(arguments[0], (str, bytes)):
                opened = os.path.realpath(os.fsdecode(arguments[0]))
                if not any(opened == place or opened.startswith(f"{place}/") for place in inside):
                    events.append(f"read outside: {opened}")

        sys.addaudithook(watch)
        with open(self.folder / f"log {self.index}", "a", buffering=1) as log:
            number = self.number()
            while number < self.count:
                seed, changed = self.make(number)
                for name, content in seed.files.items():
                    path = root / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(changed if name == seed.target else content)
                watching = True
                signal.setitimer(signal.ITIMER_PROF, SECONDS)  # SIGPROF ends the process, also in C code
                answer = "accepted"
                try:
                    read(seed, root)
                except BaseException as error:
                    is_refused = isinstance(error, (ValueError, *REFUSED) if seed.reader in JSON else REFUSED)
                    answer = "refused" if is_refused else f"unforeseen errors: {type(error).__name__}: {error}"[:300]
                signal.setitimer(signal.ITIMER_PROF, 0)
                watching = False
                for name in seed.files:
                    (root / name).unlink(missing_ok=True)
                for found in [answer, *events]:
                    log.write(json.dumps([number, seed.reader, found]) + "\n")
                events.clear()
                number += self.jobs
                struct.pack_into("<q", self.memory, 0, number)
                if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > corpus.MEMORY_KIB:
                    log.write(json.dumps([number - self.jobs, seed.reader, "over 1 GB"]) + "\n")
                    return 3
        return 0


def watch_over(workers: list[Worker], deadline: float) -> list[tuple[int, str]]:
    """Let the workers run, start those again that crash, and return the crashes by number."""
    crashes: list[tuple[int, str]] = []
    running = set(workers)
    last = dict.fromkeys(workers, -1)
    for worker in workers:
        worker.start()
    while running:
        time.sleep(0.02)
        for worker in list(running):
            if (number := worker.number()) != last[worker]:
                last[worker], worker.moved = number, time.monotonic()
            pid, status = os.waitpid(worker.pid, os.WNOHANG)
            late = time.monotonic() > deadline
            if pid == 0 and (late or time.monotonic() - worker.moved > STUCK):
                os.kill(worker.pid, signal.SIGKILL)
                os.waitpid(worker.pid, 0)
                if late:
                    running.discard(worker)
                    continue
                kind = "hangs over 10 s"
            elif pid == 0:
                continue
            elif (code := os.waitstatus_to_exitcode(status)) == 0:
                running.discard(worker)
                continue
            elif code == 3:
                worker.start()
                continue
            else:
                name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
                kind = "hangs over 10 s" if code == -signal.SIGPROF else f"crashes: {name}"
            crashes.append((number, kind))
            struct.pack_into("<q", worker.memory, 0, number + worker.jobs)
            worker.start()
    return crashes


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=2000, help="how many files (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="stop after this time (default: never)")
    parser.add_argument("--jobs", type=int, default=1, help="how many processes (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", metavar="TEXT", help="only seeds with this text in their names")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write counts and findings as JSON")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="write the files of findings there")
    arguments = parser.parse_args(argv)
    started = time.monotonic()
    logging.disable()  # warnings of readers
    import moon.export.reading
    import moon.run.log
    import moon.training.checkpoint  # noqa: F401  torch, before the workers are forked

    counts: Counter[str] = Counter()
    by_reader: dict[str, Counter[str]] = {}
    findings = []
    with tempfile.TemporaryDirectory(prefix="moon-fuzz-") as place:
        folder = Path(place).resolve()
        found = [seed for seed in seeds(folder / "seeds") if arguments.only in seed.name]
        workers = [
            Worker(index, arguments.jobs, arguments.count, arguments.seed, found, folder)
            for index in range(arguments.jobs)
        ]
        crashes = watch_over(workers, started + 60 * arguments.minutes)
        answers = [json.loads(line) for worker in workers for line in _lines(folder / f"log {worker.index}")]
        answers += [[number, workers[0].make(number)[0].reader, kind] for number, kind in crashes]
        for number, reader, answer in sorted(answers):
            kind = answer.partition(":")[0]
            counts[kind] += 1
            by_reader.setdefault(reader, Counter())[kind] += 1
            if kind not in ("accepted", "refused"):
                seed, changed = workers[0].make(number)
                findings.append(f"{number} ({seed.name}): {answer}")
                if arguments.keep is not None:
                    arguments.keep.mkdir(parents=True, exist_ok=True)
                    (arguments.keep / f"{number}-{Path(seed.target).name}").write_bytes(changed)
    files, seconds = len({answer[0] for answer in answers}), time.monotonic() - started
    print(*findings[:50], sep="\n", end="\n" * bool(findings))
    kinds = ", ".join(f"{counts[kind]} {kind}" for kind in ("accepted", "refused", *corpus.PROBLEMS[:-1]))
    print(f"{files} changed files of {len(found)} seeds in {seconds:.0f} s: {kinds}")
    if arguments.summary is not None:
        facts = {"files": files, "seeds": len(found), "seed": arguments.seed, "jobs": arguments.jobs}
        facts |= {"seconds": round(seconds), "counts": dict(counts), "findings": findings}
        facts |= {"readers": {reader: dict(count) for reader, count in sorted(by_reader.items())}}
        arguments.summary.write_text(json.dumps(facts, indent=1) + "\n")
    return int(bool(findings))


def _lines(path: Path) -> list[str]:
    """The complete lines of a log; a worker may have died while it wrote the last one."""
    return [line for line in path.read_text().splitlines() if line.endswith("]")] if path.exists() else []


if __name__ == "__main__":
    sys.exit(main())
