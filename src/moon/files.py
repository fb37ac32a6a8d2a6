"""Atomic file writes: a reader sees the complete new file, the complete old file, or no file.

A folder from someone else may contain links to files elsewhere. Nothing here writes through a link.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, BinaryIO

from moon.errors import DataError, DiskFull

if TYPE_CHECKING:
    from numpy.typing import NDArray

_PRIVATE = ".moon-", ".part"  # the name of a temporary folder begins and ends like this
_FULL = {errno.ENOSPC, errno.EDQUOT}
_FULL_TEXTS = [os.strerror(number) for number in sorted(_FULL)]  # for errors that libraries raise without a number


def sha256(path: Path) -> str:
    """Return the SHA-256 of a regular file as hexadecimal digits; a `DataError` if it is something else."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # pyright: ignore[reportArgumentType]  (has readinto)


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
    """Create a file or folder atomically. A link in its place is replaced, not followed.

    Args:
        path: The final path.
        write: Called with a path of the same name in a temporary folder next to the final one; writes the file, or
            creates the folder and its files.
    """
    with writing(path), _private_folder(path) as private:
        partial = private / path.name
        write(partial)
        for child in sorted(partial.iterdir()) if partial.is_dir() else ():
            sync(child)
        sync(partial)
        if partial.is_dir() and path.is_symlink():  # a folder cannot replace it
            path.unlink()
        partial.replace(path)
        sync(path.parent)


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary folders that killed processes have left in a folder; those of live processes stay."""
    for leftover in folder.glob(f"{_PRIVATE[0]}*{_PRIVATE[1]}"):
        with _held(leftover) as is_held:
            if is_held:
                remove(leftover)


@contextmanager
def _private_folder(path: Path) -> Iterator[Path]:
    """A new folder next to a path, removed at the end. Those that killed processes have left are removed first."""
    remove_leftovers(path.parent)
    while True:
        try:
            private = Path(tempfile.mkdtemp(prefix=_PRIVATE[0], suffix=_PRIVATE[1], dir=path.parent))
        except OSError as error:
            error.filename = str(path)
            raise
        with _held(private) as is_held:
            if is_held is False:  # another process took it for a leftover before it was locked
                continue
            try:
                yield private
            finally:
                remove(private)
            return


@contextmanager
def _held(folder: Path) -> Iterator[bool | None]:
    """Context in which a folder is locked; False if it is not, None if the file system has no locks."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:
            is_held = try_lock(descriptor) and folder.exists()
        except OSError:
            is_held = None
        yield is_held
    finally:
        os.close(descriptor)


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file or folder without waiting; closing it, or the end of the process, releases the lock.

    Args:
        descriptor: The file descriptor.
        shared: Whether other shared locks are allowed at the same time.

    Returns:
        False if another descriptor has the lock.

    Raises:
        OSError: If the file system does not support locks.
    """
    import fcntl

    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, if there is one; of a link, only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def own_folder(path: Path) -> Path:
    """Create a folder, if there is none, for files of a run.

    Args:
        path: The folder.

    Returns:
        The same path.

    Raises:
        ValueError: If it is a link, which may lead to a folder of something else, or a file.
        FileNotFoundError: If another process removes it at the same time.
    """
    if path.is_symlink():
        raise ValueError(f"{path}: is a link; a run only writes to folders of its own, so delete the link")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        if any(os.path.lexists(part) and not part.is_dir() for part in (path, *path.parents)):
            raise ValueError(f"{path}: is a file or inside one; give the path of a folder") from None
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    return path


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file for reading and appending. A link in its place is replaced by a new file, not followed.

    Args:
        path: The file; created if it does not exist.

    Returns:
        The open file.

    Raises:
        ValueError: If it is a folder, named pipe, socket or device.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    if path.is_symlink():
        path.unlink()
    try:
        descriptor = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ENXIO):  # ENXIO: a socket
            raise
    else:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "ab+")
        os.close(descriptor)
    raise ValueError(f"{path}: is not a regular file; delete it")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; anything else, such as a named pipe that would block, is a `DataError`."""
    try:
        status = os.stat(path)
    except ValueError as error:
        raise DataError(f"{path}: cannot be opened ({error})") from None  # a null character in the path
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a named pipe, socket or device"
        raise DataError(f"{path}: is {kind}, not a regular file")
    return path.open("rb")


def check_writable(path: Path, advice: str) -> None:
    """Check that a file or folder can be written, before the work whose result it receives.

    Args:
        path: The file or folder; it and its parents need not exist.
        advice: What to do if it cannot be written, for the message.

    Raises:
        ValueError: If the nearest folder that exists cannot be written to.
    """
    folder = path.absolute()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ValueError(f"{path}: cannot be written (no permission to write to {folder}); {advice}")


def check_output(path: Path, advice: str = "choose another file") -> None:
    """Check that a file can be written into a folder that exists, before the work whose result it receives.

    Args:
        path: The file; it need not exist.
        advice: What to do if it cannot be written, for the message.

    Raises:
        ValueError: If it is a folder, a device or a pipe, or its folder does not exist or cannot be written to.
    """
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; {advice}")
    if path.exists() and not path.is_file():
        raise ValueError(f"{path}: is not a regular file, and would be replaced by one; {advice}")
    if not path.parent.is_dir():
        raise ValueError(f"{path.parent}: there is no such folder; create it first")
    check_writable(path, advice)


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
