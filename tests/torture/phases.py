"""In which phase a command is when it is killed.

A forked command counts its phases in memory that it shares with the tool, which reads it after the death of the
command. Functions of moon are wrapped for this; they do nothing else than before.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

NAMES = ("start", "epoch", "mask update", "vote", "election", "writing", "end", "loading")
TARGETS = ("mask update", "vote", "election", "writing")  # the short ones
DURING = {  # functions, by module and class
    "mask update": ("moon.sparse.sparse_topology", "SparseTopology", "_rewire"),
    "vote": ("moon.training.vote", "WeightVote", "cast"),
    "election": ("moon.training.vote", "WeightVote", "elect"),
    "epoch": ("moon.training.loop", "Training", "_run_epochs"),
    "loading": ("moon_runtime.classifier", "Classifier", "__init__"),  # only if it is installed
}


class Phases:
    """How often each phase began, the present phase of the main thread, and how many files are being written."""

    def __init__(self) -> None:
        self.phase, self.writes = 64, 68  # where they are, in bytes; the counts are before them
        self.renew()

    def renew(self) -> None:
        """Share new memory with the processes that are forked from now on, as each worker must."""
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)

    def _get(self, place: int) -> int:
        return struct.unpack_from("<i", self.memory, place)[0]

    def _set(self, place: int, value: int) -> None:
        struct.pack_into("<i", self.memory, place, value)

    def clear(self) -> None:
        self.memory[:72] = bytes(72)

    def reached(self, name: str, count: int) -> bool:
        """Whether a phase has begun `count` times."""
        return self._get(4 * NAMES.index(name)) >= count

    def counted(self) -> dict[str, int]:
        """How often each phase has begun."""
        return {name: self._get(4 * number) for number, name in enumerate(NAMES)}

    def now(self) -> str:
        """The phase; "writing" if a file is being written, by whichever thread."""
        return "writing" if self._get(self.writes) > 0 else NAMES[self._get(self.phase)]

    @contextmanager
    def during(self, name: str, after: str | None = None) -> Iterator[None]:
        number, before = NAMES.index(name), self._get(self.phase)
        self._set(4 * number, self._get(4 * number) + 1)
        self._set(self.phase, number)
        try:
            yield
        finally:
            self._set(self.phase, before if after is None else NAMES.index(after))

    @contextmanager
    def write(self) -> Iterator[None]:
        number = 4 * NAMES.index("writing")
        self._set(number, self._get(number) + 1)
        self._set(self.writes, self._get(self.writes) + 1)
        try:
            yield
        finally:
            self._set(self.writes, self._get(self.writes) - 1)


PHASES = Phases()


def install() -> None:
    """Wrap the functions of this process; forked ones inherit that."""
    from importlib import import_module
    from importlib.util import find_spec

    for phase, (module, owner, name) in DURING.items():
        if find_spec(module.partition(".")[0]) is None:
            continue
        target = getattr(import_module(module), owner)
        setattr(target, name, _wrapped(getattr(target, name), phase))
    files: Any = import_module("moon.files")
    private_folder = files._private_folder

    @contextmanager
    def counted(path: Any) -> Iterator[Any]:
        with PHASES.write(), private_folder(path) as private:
            yield private

    files._private_folder = counted


def _wrapped(function: Callable[..., Any], phase: str) -> Callable[..., Any]:
    after = "end" if phase in ("epoch", "election") else None

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with PHASES.during(phase, after):
            return function(*args, **kwargs)

    return wrapper
