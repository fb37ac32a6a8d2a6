"""Unfinished downloads: files that one process at a time writes to, and that a later one takes over."""

from __future__ import annotations

import glob
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from moon.files import try_lock


@contextmanager
def own_part(path: Path) -> Iterator[Path]:
    """Context with a file next to `path` for what is received, which no other process uses.

    It is one that an interrupted download has left, or a new one with a unique name. If the file system has no locks,
    it is always a new one.
    """
    parts = [path.with_name(f"{path.name}.part"), *path.parent.glob(f"{glob.escape(path.name)}.*.part")]
    with ExitStack() as stack:
        for part in parts:
            if stack.enter_context(_locked(part)):
                break
        else:
            part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
            part.open("xb").close()
            stack.enter_context(_locked(part))
        yield part


@contextmanager
def _locked(part: Path) -> Iterator[bool]:
    """Context in which a file is locked; False if it is not: it is missing, or another process uses it."""
    try:
        descriptor = os.open(part, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        yield False
        return
    try:
        try:  # the process that had the lock may have renamed or deleted it
            is_locked = try_lock(descriptor) and os.path.samestat(os.fstat(descriptor), os.lstat(part))
        except OSError:  # deleted, or a file system without locks
            is_locked = False
        yield is_locked
    finally:
        os.close(descriptor)
