"""Standard output and error that are closed, or that nobody reads any more."""

from __future__ import annotations

import os
import select
import sys


def open_closed() -> None:
    """Replace closed streams (`>&-`) by empty ones; Python has None in their place, or prints to the other one."""
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_RDONLY))
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(_nowhere(), "w"))


def flush() -> None:
    """Write what is buffered. What cannot be written is lost: Python would fail at its end, with another exit code."""
    for output, stream in enumerate((sys.stdout, sys.stderr), start=1):
        try:
            stream.flush()
        except OSError:
            os.dup2(_nowhere(), output)


def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def is_unread(output: int) -> bool:
    """Whether the reader of a pipe is gone, as in `moon methods | head -1`; False also for what is not a pipe."""
    poll = select.poll()
    poll.register(output, 0)  # errors are reported in any case
    return bool(poll.poll(0))
