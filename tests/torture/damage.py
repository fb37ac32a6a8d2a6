"""Damage one file of a run folder, then use the run: no number may change without a word.

`python -m tests.torture.damage --minutes 5 --seed 0`

Every file of a finished and scored run, and of one that was killed after two of three epochs, is damaged in turn: a
flipped bit, a cut end, a block of zeros, a doubled block, emptied, removed, replaced by the file of another run. Then
`moon score` (of one detector, so that it keeps the scores of the others), `moon report`, `moon pack` or `moon train`
must

    do exactly what it does without the damage (identical),
    or end with one line about this run and an exit code other than 1 (refused),
    or warn about this run, and go on (said).

Anything else is a finding; the worst is a changed number without a word (silent).
"""

from __future__ import annotations

import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.torture.common import (
    PACK,
    REPORT,
    RUN,
    SCORE,
    TRAIN,
    Process,
    contents,
    fork,
    fresh,
    missing,
)  # fmt: skip
from tests.torture.crash import disturbed
from tests.torture.workers import Report, Worker, parse, work, workplace

SCORE_AGAIN = [*SCORE[:3], "msp"]
AFTER_TWO_EPOCHS = f"open {RUN}/log.jsonl #3"
BLOCK = 64  # bytes


def flip(data: bytes, rng: random.Random) -> bytes:
    place, bit = rng.randrange(len(data)), rng.randrange(8)
    return data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def zeros(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes(len(data[place : place + BLOCK])) + data[place + BLOCK :]


def double(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[: place + BLOCK] + data[place:]


CHANGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "flipped": flip,
    "cut": cut,
    "zeros": zeros,
    "doubled": double,
    "emptied": lambda data, rng: b"",
}
KINDS = [*CHANGES, "flipped", "removed", "swapped"]


def damage(path: Path, kind: str, other: Path, rng: random.Random) -> bool:
    """Damage a file; False if there is nothing to change."""
    data = path.read_bytes()
    if kind == "removed":
        path.unlink()
        return True
    if not data or (kind == "swapped" and not other.is_file()):
        return False
    new = other.read_bytes() if kind == "swapped" else CHANGES[kind](data, rng)
    path.write_bytes(new)
    return new != data


def outcome(argv: list[str], place: Path, process: Process) -> Any:
    """What a command has told and written, without times."""
    if argv is TRAIN:
        return {name: value for name, value in contents(place).items() if "checkpoints" not in name}
    if argv is REPORT:
        return (place / RUN / "report.html").read_bytes()
    written = {"score": ("scores.json", "scores.npz", "known.npz", "examples.npz"), "pack": ("packed.moon",)}[argv[0]]
    found = {name: value for name, value in contents(place).items() if Path(name).name in written}
    return process.text(), found


def told(argv: list[str], place: Path, process: Process) -> Any:
    """The numbers that `moon train` has told, without times; it writes nothing into the folder of a finished run.

    Without result.json the run is not finished: it resumes after the last epoch, and must end with these numbers.
    """
    return [re.sub(r"\d+ s$", "", line) for line in process.text().splitlines() if line.startswith(f"{RUN}: ")]


State = tuple[Path, Path, list[str], Any, Any, str]  # folder, another run's, command, `outcome` or `told`, ...


def states(folder: Path, report: Report) -> list[State]:
    """Run folders to damage, with the commands to try and what they do without damage."""
    finished, other, begun = (fresh(None, folder / name) for name in ("finished", "other", "begun"))
    for place, seed in ((finished, "0"), (other, "1")):
        for argv in ([*TRAIN, "--seed", seed], SCORE):
            if (process := fork(argv, place)).wait() != 0:
                sys.exit(f"damage: moon {argv[0]} fails undamaged:\n{process.text()}")
    disturbed(TRAIN, begun, AFTER_TWO_EPOCHS, "before").wait()
    other_begun = fresh(None, folder / "other begun")
    disturbed([*TRAIN, "--seed", "1"], other_begun, AFTER_TWO_EPOCHS, "before").wait()
    tried: list[tuple[Path, Path, list[str], Any]] = [
        (finished, other, SCORE_AGAIN, outcome),
        (finished, other, PACK, outcome),
        (finished, other, REPORT, outcome),
        (finished, other, TRAIN, told),
        (begun, other_begun, TRAIN, outcome),
    ]
    found = []
    for source, another, argv, look in tried:
        if reason := missing(argv[0]):
            report.skip(argv[0], reason)
            continue
        process = fork(argv, place := fresh(source, folder / "undamaged"))
        if process.wait() != 0:
            sys.exit(f"damage: moon {argv[0]} fails undamaged:\n{process.text()}")
        found.append((source, another, argv, look, look(argv, place, process), process.text()))
    return found


def trial(state: State, name: str, kind: str, place: Path, rng: random.Random, report: Report) -> None:
    """Damage a file of a copy, run the command, and judge what it does."""
    source, other, argv, look, expected, usual = state
    place = fresh(source, place)
    if not damage(place / name, kind, other / name, rng):
        return
    report.counts["damages"] += 1
    report.counts[f"{source.name} run, moon {argv[0]}"] += 1
    how = f"{name} {kind} in the {source.name} run, moon {argv[0]}"
    process = fork(argv, place)
    code, said = process.wait(), process.text()
    new = [line for line in said.splitlines() if line not in usual.splitlines()]
    about = [line for line in new if RUN in line and line.startswith(("warning: ", f"moon {argv[0]}: "))]
    if code is None:
        process.kill()
        report.finding("hangs", how)
    elif code < 0 or code == 1 or "Traceback" in said:
        report.finding("unexpected", f"{how}: code {code}: {said[-300:].strip()}")
    elif code:
        if about and len(about) == 1:
            report.counts["refused"] += 1
        else:
            report.finding("unclear", f"{how}: code {code}, but not one line about the run: {said[-300:].strip()}")
    elif look(argv, place, process) == expected:
        report.counts["identical"] += 1
    elif about:
        report.counts["said"] += 1
    else:
        report.finding("silent", f"{how}: the outcome differs, and nothing is said")


def main(argv: list[str] | None = None) -> int:
    arguments = parse(__doc__, "damages", argv)
    report = Report("damage")
    report.counts.update(dict.fromkeys(("damages", "identical", "refused", "said", "silent"), 0))
    started = time.monotonic()
    with workplace(arguments) as folder:
        todo = [
            (state, str(path.relative_to(state[0])))
            for state in states(folder, report)
            for path in sorted(state[0].rglob("*"))
            if path.is_file()
        ]

        def do(worker: Worker) -> None:
            for number, rng in worker.turns():  # each round damages every file once, for every command
                turn, place = divmod(number, len(todo))
                order = random.Random(f"{arguments.seed} round {turn}").sample(range(len(todo)), len(todo))
                state, name = todo[order[place]]
                trial(state, name, rng.choice(KINDS), worker.folder / "trial", rng, worker.report)

        work(arguments, folder, started, report, do)
    return report.finish(arguments, time.monotonic() - started)


if __name__ == "__main__":
    sys.exit(main())
