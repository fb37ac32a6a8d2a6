"""What Ctrl-C does: one line that says how to go on, and exit code 130."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

STOPPED = {
    "demo": "the same command resumes from the last checkpoint",
    "train": "the same command resumes from the last checkpoint",
    "score": "runs that were scored completely are written; run the same command again for the others",
    "grid": "finished runs are kept; the same command resumes the others",
    "paper": "finished runs are kept; the same command resumes the others",
    "report": "no page was written",
    "bench": "no times were written",
    "data": "splits that were written are complete; the same command writes the others, and resumes a download",
}


class Stop:
    """The line to print after Ctrl-C; the command is filled in once it is known."""

    def __init__(self) -> None:
        self.verb = ""

    def __str__(self) -> str:
        advice = f"; {STOPPED[self.verb]}" if self.verb in STOPPED else ""
        return f"\n{f'moon {self.verb}'.rstrip()}: stopped{advice}"


@contextmanager
def leave_imports_at_once(stop: Stop) -> Iterator[None]:
    """Context in which Ctrl-C during an import ends the process at once.

    A KeyboardInterrupt inside an import may be swallowed, or arrive as an ImportError that blames the installation.
    Importing writes nothing, so there is nothing to clean up. Outside of imports Ctrl-C raises KeyboardInterrupt.
    """

    def leave_or_raise(_: int, frame: FrameType | None) -> None:
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                with suppress(Exception):  # it may have been interrupted while it was being written to
                    sys.stdout.flush()
                os.write(2, f"{stop}\n".encode())
                os._exit(130)
            frame = frame.f_back
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:  # as under nohup
        yield
        return
    signal.signal(signal.SIGINT, leave_or_raise)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
