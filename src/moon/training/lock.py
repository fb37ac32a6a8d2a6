"""Locks that allow one process per run folder.

The lock is on the file `lock` in the folder, because network file systems know only locks of files. It names the
process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from moon.errors import RunLocked
from moon.files import open_to_append, own_folder, try_lock

LOCK = "lock"
_ATTEMPTS = 100  # to lock a folder that other processes remove in the meantime

_lent: ContextVar[tuple[Path, ...]] = ContextVar("lent", default=())  # folders that calls of `locked` may share


@contextmanager
def locked(folder: Path, *, lend: bool = False) -> Iterator[None]:
    """Context in which this process holds the lock of a folder, which is created if it does not exist.

    The operating system releases the lock when the process ends, even if it is killed. If nothing but the lock file is
    in the folder at the end of the context, what was created for the lock is removed: a run that is rejected before it
    writes something leaves nothing. With `lend`, calls inside this context, in the same thread, share the lock: a
    worker holds a folder from training to scoring.

    Raises RunLocked if another process, or another part of this one, has the lock; a ValueError if the path is not a
    folder, or its file system does not support locks.
    """
    place = folder.resolve()
    if place in _lent.get():
        yield
        return
    with ExitStack() as stack:
        _lock(place, folder, stack)
        token = _lent.set((*_lent.get(), place)) if lend else None
        try:
            yield
        finally:
            if token is not None:
                _lent.reset(token)


def _lock(place: Path, folder: Path, stack: ExitStack) -> None:
    """Lock a folder until the stack is closed, which also removes what was created for the lock if that is all."""
    for left in reversed(range(_ATTEMPTS)):
        created = [path for path in (place / LOCK, place, *place.parents) if not path.exists()]
        with ExitStack() as attempt:
            try:
                own_folder(place)
                file = attempt.enter_context(open_to_append(place / LOCK))
            except FileNotFoundError:  # the process that had it locked has removed it
                if not left:
                    raise
                continue
            try:
                is_ours = _acquire(file.fileno(), folder)
            except ValueError:
                _remove(created, place, file.fileno())
                raise
            if not is_ours:
                file.seek(0)
                raise RunLocked(
                    f"{folder}: another process (PID {file.read(20).decode(errors='replace').strip() or 'unknown'}) "
                    "uses this run folder; wait for it, or stop it first"
                )
            if not _is_at(file.fileno(), place / LOCK):
                continue  # what is locked was removed before; a third process may have created it anew
            attempt.callback(_remove, created, place, file.fileno())  # while it is still locked
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
            stack.push(attempt.pop_all())
            return
    raise RunLocked(f"{folder}: other processes create and remove this folder again and again; stop them first")


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is still the one with this path."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _remove(created: list[Path], place: Path, descriptor: int) -> None:
    """Remove what was created for a lock, the innermost first, if the folder contains nothing else.

    `descriptor` is the open lock file. If another one is in its place, that is a folder of another process.
    """
    with suppress(OSError):  # a folder is not removed if something else is in it
        if _is_at(descriptor, place / LOCK) and os.listdir(place) == [LOCK]:
            for path in created:
                (path.unlink if path == place / LOCK else path.rmdir)()


def _acquire(descriptor: int, folder: Path) -> bool:
    """Try to lock, several times: `is_locked` in another process also holds the lock for a moment."""
    for wait in (0.0, 0.01, 0.05, 0.1):
        time.sleep(wait)
        try:
            if try_lock(descriptor):
                return True
        except OSError as error:
            raise ValueError(
                f"{folder}: the file system does not support locks ({error.strerror}), so nothing would prevent two "
                "processes from writing to the same run; use a folder on another file system"
            ) from error
    return False


def is_locked(folder: Path) -> bool:
    """Whether a process, this one or another, has locked the folder, which need not exist."""
    try:
        descriptor = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(descriptor, shared=True)
    except OSError:  # there are no locks
        return False
    finally:
        os.close(descriptor)
