"""Atomic file writes: a reader sees the complete new file, the complete old file, or no file. Safe reads."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from moon.errors import DataError, DiskFull

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FULL = {errno.ENOSPC, errno.EDQUOT}
_MAX_JSON_BYTES = 2**26
_FULL_TEXTS = [os.strerror(number) for number in sorted(_FULL)]  # for errors that libraries raise without a number


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def full_disk(error: BaseException, path: Path | None = None) -> DiskFull | None:
    """Find out whether a full disk caused an error, whichever exceptions wrap it.

    Args:
        error: The error.
        path: The file that was being written, if it is known.

    Returns:
        The error to report instead, which names the file if it is known; None for an error of another kind.
    """
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, DiskFull):
            return cause
        number = cause.errno if isinstance(cause, OSError) else None
        if number in _FULL or (number is None and any(text in str(cause) for text in _FULL_TEXTS)):
            name = path or (cause.filename if isinstance(cause, OSError) else None)
            text = "the disk is full; free some space, then try again"
            return DiskFull(number or errno.ENOSPC, text, *[str(name)] * (name is not None))
        cause = cause.__cause__ or cause.__context__
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context in which a file is written: the error of a full disk then names it."""
    try:
        yield
    except Exception as error:
        if (full := full_disk(error, path)) is not None and full is not error:
            raise full from error
        raise


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Create a file or folder atomically. Several processes may write the same one; the last to finish wins.

    Args:
        path: The final path.
        write: Called with a temporary path in the same folder; writes the file, or creates the folder and its files.
    """
    _remove_abandoned(path)
    partial = path.with_name(f".{path.name}.{_machine()}.{os.getpid()}.{secrets.token_hex(4)}.part")
    try:
        with writing(path):
            write(partial)
            for child in sorted(partial.iterdir()) if partial.is_dir() else ():
                sync(child)
            sync(partial)
            partial.rename(path)
            sync(path.parent)
    except BaseException:
        _remove(partial)
        raise


def _machine() -> str:
    """The name of this machine, as a part of a file name."""
    return re.sub(r"[^A-Za-z0-9-]", "-", platform.node())[:40] or "unnamed"


def _remove_abandoned(path: Path) -> None:
    """Remove what processes of this machine left when they were killed while they wrote a path."""
    start, end = f".{path.name}.", ".part"
    for name in os.listdir(path.parent) if path.parent.is_dir() else ():
        if not (name.startswith(start) and name.endswith(end)):
            continue
        machine, _, rest = name[len(start) : -len(end)].partition(".")
        pid = rest.partition(".")[0]
        if name == f".{path.name}.part" or (machine == _machine() and pid.isdecimal() and not _is_alive(int(pid))):
            _remove(path.with_name(name))


def _is_alive(pid: int) -> bool:
    """Whether a process of this machine exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _remove(path: Path) -> None:
    """Remove a file or folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; anything else, such as a named pipe that would block, is a `DataError`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except ValueError as error:  # a null character in the path
        raise DataError(f"{path}: cannot be opened ({error})") from None
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        kind = "a folder" if stat.S_ISDIR(mode) else "a named pipe, socket or device"
        raise DataError(f"{path}: is {kind}, not a regular file")
    return os.fdopen(descriptor, "rb")


def read_json(path: Path) -> Any:
    """Read a JSON file; a ValueError if it is not valid JSON, too deeply nested or not a regular file."""
    with open_regular(path) as file:
        content = file.read(_MAX_JSON_BYTES + 1)
    if len(content) > _MAX_JSON_BYTES:
        raise DataError(f"{path}: has more than {_MAX_JSON_BYTES:,} bytes")
    try:
        return json.loads(content.decode("utf-8"))
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply") from None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomic(path, lambda partial: partial.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinity raise a ValueError."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray], *, compress: bool = True) -> None:
    """Write an .npz file atomically."""
    import numpy as np

    def save(partial: Path) -> None:
        with partial.open("wb") as file:
            (np.savez_compressed if compress else np.savez)(file, **arrays)  # pyright: ignore[reportArgumentType]

    write_atomic(path, save)
