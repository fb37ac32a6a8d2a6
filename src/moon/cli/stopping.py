"""What Ctrl-C, SIGTERM and SIGHUP do: files that are being written are completed, and one line says how to continue."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from moon.cli.streams import flush

RESUMES = "the same command resumes from the last checkpoint, or starts again if there is none"
STOPPED = {
    "demo": RESUMES,
    "train": RESUMES,
    "score": "runs that were scored completely are written; run the same command again for the others",
    "grid": "finished runs are kept; the same command resumes the others",
    "paper": "finished runs are kept; the same command resumes the others",
    "report": "no page was written",
    "bench": "no times were written",
    "data": "splits that were written are complete; the same command writes the others, and resumes a download",
}


# SIGTERM and SIGHUP come from Slurm, Kubernetes or a closed terminal: 75 asks for the same command to be run again.
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGHUP: 75}


class Stop:
    """How a command was stopped, if it was, and the line to print then.

    Attributes:
        verb: The command, once it is known.
        code: The exit code; None if it was not stopped.
    """

    def __init__(self) -> None:
        self.verb = ""
        self.code: int | None = None

    def __str__(self) -> str:
        return f"\n{f'moon {self.verb}'.rstrip()}: stopped{self.advice}"

    @property
    def advice(self) -> str:
        """The end of a line: what is written, and how to continue."""
        return f"; {STOPPED[self.verb]}" if self.verb in STOPPED else ""

    def leave(self) -> NoReturn:
        """Print the line and end the process; nothing fails if the terminal is gone."""
        flush()
        with suppress(OSError):
            print(self, file=sys.stderr)
        sys.exit(self.code or EXIT_CODES[signal.SIGINT])


@contextmanager
def stopped_by_signals(stop: Stop) -> Iterator[None]:
    """Context in which Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, or end the process if it is importing.

    A KeyboardInterrupt inside an import may be swallowed, or arrive as an ImportError that blames the installation.
    Importing writes nothing, so there is nothing to clean up. A signal that is ignored, as under nohup, stays ignored.
    """
    process = os.getpid()

    def leave_or_raise(number: int, frame: FrameType | None) -> None:
        if os.getpid() != process:  # a forked process, such as one that reads images: end as if there were no handler
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
            return
        stop.code = EXIT_CODES[signal.Signals(number)]
        while frame is not None:
            if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
                with suppress(Exception):  # it may have been interrupted while it was being written to
                    sys.stdout.flush()
                with suppress(OSError):
                    os.write(2, f"{stop}\n".encode())
                os._exit(stop.code)
            frame = frame.f_back
        raise KeyboardInterrupt

    is_main = threading.current_thread() is threading.main_thread()  # only the main thread may set handlers
    defaults = {number: signal.getsignal(number) for number in EXIT_CODES if is_main}
    before = {number: old for number, old in defaults.items() if old in (signal.default_int_handler, signal.SIG_DFL)}
    for number in before:
        signal.signal(number, leave_or_raise)
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
