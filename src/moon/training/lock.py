"""One process a run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class RunLocked(Exception):
    """Another process works in this run folder."""


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Hold the folder; the system lets go of it when the process ends, however it ends.

    Locks of other names do not touch each other.
    """

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder}: a file is in the way; a run needs a folder of its own") from None
    with (folder / name).open("a+") as file:
        if not _grasp(file):
            file.seek(0)
            raise RunLocked(
                f"{folder}: another process (number {file.read().strip() or 'unknown'}) works in this run folder; "
                "wait for it, or stop it first"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _grasp(file: IO[str]) -> bool:
    """Try to hold the file, for a moment: one who only looks whether it is held holds it, too, for an instant."""
    import fcntl

    for wait in (0.0, 0.01, 0.05, 0.1):
        time.sleep(wait)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            pass
    return False


def is_locked(folder: Path, name: str = "lock") -> bool:
    """Whether a process, this one or another, holds the folder."""
    import fcntl

    try:
        with (folder / name).open() as file:  # one who only looks makes no file
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
