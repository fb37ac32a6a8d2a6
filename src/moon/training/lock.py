"""Locks that allow one process per run folder."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from moon.errors import RunLocked


@contextmanager
def locked(folder: Path, name: str = "lock") -> Iterator[None]:
    """Context in which this process holds the lock of a folder.

    The operating system releases the lock when the process ends, even if it is killed.

    Args:
        folder: The folder; created if it does not exist.
        name: The name of the lock file. Locks with different names are independent.

    Raises:
        RunLocked: If another process has the lock.
        ValueError: If the path is not a folder.

    Example:
        >>> from pathlib import Path
        >>> from tempfile import TemporaryDirectory
        >>> from moon.training import is_locked, locked
        >>> with TemporaryDirectory() as folder:
        ...     with locked(Path(folder)):
        ...         is_locked(Path(folder))
        ...     is_locked(Path(folder))
        True
        False
    """

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise ValueError(f"{folder}: is a file or inside one; give the path of a folder") from None
    with (folder / name).open("a+", encoding="utf-8") as file:
        if not _acquire(file):
            file.seek(0)
            raise RunLocked(
                f"{folder}: another process (PID {file.read().strip() or 'unknown'}) uses this run folder; "
                "wait for it, or stop it first"
            )
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def _acquire(file: IO[str]) -> bool:
    """Try to lock the file, several times: `is_locked` in another process also holds the lock for a moment."""
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
    """Whether a process, this one or another, has locked the folder.

    Args:
        folder: The folder; it need not exist.
        name: The name of the lock file.

    Returns:
        True if it is locked.
    """
    import fcntl

    try:
        with (folder / name).open(encoding="utf-8") as file:  # does not create the file
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
