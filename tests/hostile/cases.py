"""A hostile file, how it is read, and the answer that is expected."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """A hostile source in its own folder.

    Args:
        name: What is wrong with it.
        reader: How it is read, a key of `reading.READERS`.
        write: Writes it into an empty folder, and returns the path to read, relative to that folder. The folder's
            sibling `outside` contains files that must not be read.
        refused: A part of the `DataError`; None if the source must be accepted.
        value: What an accepted source must contain (see `value_of`); None: anything.
        either: Whether the other answer is right as well: for random damage that may go unnoticed.
        environment: Environment variables, such as a lower limit on memory.
    """

    name: str
    reader: str
    write: Callable[[Path], str]
    refused: str | None = None
    value: str | None = None
    either: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def value_of(images: np.ndarray, labels: object) -> str:
    """A digest of images and labels."""
    digest = hashlib.sha256(np.ascontiguousarray(images).tobytes())
    digest.update(np.asarray(labels, np.int64).tobytes())
    return f"{images.shape} {digest.hexdigest()[:16]}"


def file(name: str, content: bytes | Callable[[], bytes]) -> Callable[[Path], str]:
    """A function that writes one file."""

    def write(folder: Path) -> str:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content())
        return name

    return write


def sparse(name: str, size: int, start: bytes = b"", end: bytes = b"") -> Callable[[Path], str]:
    """A function that writes a long file that occupies almost nothing on disk."""

    def write(folder: Path) -> str:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as stream:
            stream.write(start)
            stream.truncate(size)
            stream.seek(0, os.SEEK_END)
            stream.write(end)
        return name

    return write


def fifo(name: str) -> Callable[[Path], str]:
    """A function that makes a named pipe: opening one waits for a writer, forever."""

    def write(folder: Path) -> str:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        os.mkfifo(path)
        return name

    return write


def damaged(content: bytes, count: int, seed: int, start: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content) with random damage: flipped bits, changed bytes, missing and additional parts."""
    rng = random.Random(seed)
    for number in range(count):
        changed = bytearray(content)
        at = rng.randrange(start, len(changed))
        kind = ("flip", "byte", "cut", "insert")[number % 4]
        if kind == "flip":
            changed[at] ^= 1 << rng.randrange(8)
        elif kind == "byte":
            changed[at] = rng.choice((0, 1, 127, 128, 255))
        elif kind == "cut":
            del changed[at : at + rng.randrange(1, 100)]
        else:
            changed[at:at] = rng.randbytes(rng.randrange(1, 20))
        yield f"{kind} {number}", bytes(changed)
