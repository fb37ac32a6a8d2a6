"""Several workers that share the trials of a tool, their options, and one report of all of them.

Each worker is a fork of the tool, made after it has prepared what all trials share, with a folder of its own. Trial
number n of a seed is always the same one, and worker i of N does the trials i, i + N, i + 2 N, ...
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.torture.common import LIVE, import_everything, make_data

GRACE = 60.0  # seconds that the last trials may take after the end of the time


@dataclass
class Report:
    """Counts and findings of one tool; a finding is printed at once."""

    tool: str
    counts: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)  # what is not tried, and why
    trial: str = ""  # the trial that is running, for findings

    def finding(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.findings.append(f"{kind}: {text}{self.trial}")
        print(f"{self.tool}: {self.findings[-1]}", flush=True)

    def skip(self, what: str, why: str) -> None:
        if what not in self.skipped:
            self.skipped[what] = why
            print(f"{self.tool}: moon {what} is not tried: {why}", flush=True)

    def add(self, other: Report) -> None:
        """Add what a worker has found. How many points there are is the same for all of them."""
        of = self.counts["of"] or other.counts["of"]
        self.counts.update(other.counts)
        if of:
            self.counts["of"] = of
        self.findings += other.findings

    def finish(self, arguments: argparse.Namespace, seconds: float) -> int:
        totals = ", ".join(f"{number} {name}" for name, number in self.counts.items() if ", " not in name)
        how = f"seed {arguments.seed}, {arguments.jobs} workers"
        print(f"{self.tool}: {totals}; {len(self.findings)} findings in {seconds:.0f} s ({how})", flush=True)
        if arguments.summary is not None:
            facts = {"tool": self.tool, "seed": arguments.seed, "jobs": arguments.jobs, "seconds": round(seconds)}
            facts |= {"counts": dict(self.counts), "skipped": self.skipped, "findings": self.findings}
            arguments.summary.write_text(json.dumps(facts, indent=1) + "\n")
        return int(bool(self.findings))


def parse(
    description: str | None, unit: str, argv: list[str] | None, commands: list[str] | None = None
) -> argparse.Namespace:
    """The options of every tool; with `commands`, `--only` as well."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, help="how long to go on (default: 5, or no limit with --count)")
    parser.add_argument("--count", type=int, help=f"how many {unit} at most (default: no limit)")
    parser.add_argument("--jobs", type=int, default=1, help="how many workers (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="what is disturbed, and when (default: %(default)s)")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write counts and findings as JSON")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="work there, and keep it (default: a temporary one)"
    )
    if commands:
        parser.add_argument("--only", nargs="+", choices=commands, help="the commands to try (default: all)")
    arguments = parser.parse_args(argv)
    if arguments.minutes is None:
        arguments.minutes = 5.0 if arguments.count is None else float("inf")
    arguments.unit = unit
    return arguments


@contextmanager
def workplace(arguments: argparse.Namespace) -> Iterator[Path]:
    """A folder to work in, with data; all modules are imported."""
    folder = Path(arguments.keep or tempfile.mkdtemp(prefix="moon-torture-")).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MOON_DATA"] = str(make_data(folder / "data"))
    import_everything()
    try:
        yield folder
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Worker:
    """One of several processes that share the trials."""

    index: int
    arguments: argparse.Namespace
    folder: Path
    end: float
    report: Report

    def turns(self) -> Iterator[tuple[int, random.Random]]:
        """Its trials, as a number and a random generator for each, until the time is over or its share is done."""
        jobs, count = self.arguments.jobs, self.arguments.count
        share = None if count is None else count // jobs + (self.index < count % jobs)
        number = self.index
        while time.monotonic() < self.end and (share is None or self.report.counts[self.arguments.unit] < share):
            self.report.trial = f" (trial {number})"
            yield number, random.Random(f"{self.arguments.seed} {number}")
            number += jobs
        self.report.trial = ""


def work(
    arguments: argparse.Namespace, folder: Path, started: float, report: Report, do: Callable[[Worker], object]
) -> None:
    """Let `--jobs` forked workers do the trials, and add what they find to the report."""
    end = started + 60 * arguments.minutes

    def one(index: int) -> Callable[[], Report]:
        def run() -> Report:
            place = folder / f"worker {index}"
            place.mkdir(exist_ok=True)
            mine = Report(report.tool, Counter(dict.fromkeys(report.counts, 0)), skipped=report.skipped)
            do(Worker(index, arguments, place, end, mine))
            return mine

        return run

    for index, found in enumerate(in_parallel([one(index) for index in range(arguments.jobs)], folder, end + GRACE)):
        if isinstance(found, Report):
            report.add(found)
        else:
            report.finding("unfinished", f"worker {index}: {found}")


def in_parallel(tasks: list[Callable[[], Any]], folder: Path, end: float = float("inf")) -> list[Any]:
    """Call functions in forked processes, all at once.

    Returns:
        Their results, in order; for one that fails, or still runs at `end`, a text that says so.
    """
    sys.stdout.flush()
    pids = []
    for number, task in enumerate(tasks):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                signal.signal(signal.SIGTERM, _stop)
                path = folder / f"result {number}"
                path.write_bytes(pickle.dumps(task()))
                code = 0
            except SystemExit as stop:
                print(stop.code, file=sys.stderr)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        pids.append(pid)
    results: list[Any] = []
    for number, pid in enumerate(pids):
        path, late = folder / f"result {number}", ""
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0:
            if time.monotonic() > end and not late:
                late = "was stopped, because it was late"
                os.kill(pid, signal.SIGTERM)
            time.sleep(0.01)
        code = os.waitstatus_to_exitcode(ended[1])
        results.append(pickle.loads(path.read_bytes()) if code == 0 else late or f"ended with code {code}")
        path.unlink(missing_ok=True)
    return results


def _stop(*_: object) -> None:
    """End the commands of a worker, and the worker."""
    for process in LIVE:
        if process.poll() is None:
            process.kill()
    sys.exit("stopped")
