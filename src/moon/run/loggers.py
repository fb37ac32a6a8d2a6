"""Loggers: copies of the training log for other tools. One that fails is left out; the run goes on.

`log.jsonl` is the record of a run; what is written here can be lost.
"""

from __future__ import annotations

import csv
import io
import logging
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from moon.files import open_to_append, own_folder, write_text
from moon.recipe import Recipe
from moon.suggest import as_names, did_you_mean, first_line
from moon.training.loop import Record

_log = logging.getLogger(__name__)


class Logger(Protocol):
    """Writes the records of a run somewhere. Any of its methods may raise any exception."""

    def write(self, record: Record) -> None:
        """Write the record of an epoch."""
        ...

    def close(self) -> None:
        """Finish writing."""
        ...


class CsvLogger:
    """`metrics.csv`: one line per epoch; `history` are the records of earlier epochs."""

    def __init__(self, folder: Path, recipe: Recipe, history: Sequence[Record]) -> None:
        self.path, self._records = folder / "metrics.csv", list(history)

    def write(self, record: Record) -> None:
        self._records.append(record)
        names = list(dict.fromkeys(name for one in self._records for name in one))
        text = io.StringIO()
        table = csv.DictWriter(text, names, lineterminator="\n")
        table.writeheader()
        table.writerows(self._records)
        write_text(self.path, text.getvalue())

    def close(self) -> None:
        """Does nothing."""


class TensorBoardLogger:
    """An event file in the folder `tensorboard`, written without a thread, so that its errors can be caught.

    Earlier event files contain `history`, the records of earlier epochs.
    """

    def __init__(self, folder: Path, recipe: Recipe, history: Sequence[Record]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.compat.proto.summary_pb2 import Summary  # pyright: ignore[reportAttributeAccessIssue]
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary, self._writer = Event, Summary, RecordWriter
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        self._file = open_to_append(own_folder(folder / "tensorboard") / name)
        try:
            self._add(file_version="brain.Event:2")
            # TensorBoard then hides what earlier files contain about epochs from this one on.
            self._add(step=len(history), session_log=SessionLog(status=SessionLog.START))
        except OSError:
            self._file.close()
            raise

    def _add(self, **content: Any) -> None:
        data = io.BytesIO()
        self._writer(data).write(self._event(wall_time=time.time(), **content).SerializeToString())
        # Not through a buffer: what does not fit on the disk would be written again, and fail again, when it is freed.
        left = memoryview(data.getvalue())
        while left:
            left = left[os.write(self._file.fileno(), left) :]

    def write(self, record: Record) -> None:
        values = [
            self._summary.Value(tag=name, simple_value=value)
            for name, value in record.items()
            if name != "epoch" and value is not None
        ]
        self._add(step=record["epoch"], summary=self._summary(value=values))

    def close(self) -> None:
        self._file.close()


class WandbLogger:
    """A run of Weights & Biases in the folder `wandb`, offline unless $WANDB_MODE says otherwise.

    `wandb sync` uploads it later. A resumed run continues the same one.
    """

    def __init__(self, folder: Path, recipe: Recipe, history: Sequence[Record]) -> None:
        import wandb

        mode = os.environ.get("WANDB_MODE", "offline")
        with _without_traces():
            self._run = wandb.init(
                project=os.environ.get("WANDB_PROJECT", "moon"),
                dir=own_folder(folder / "wandb"),
                name=recipe.name,
                id=recipe.digest[:32],
                config=recipe.to_json(),
                mode=mode,  # pyright: ignore[reportArgumentType]
                resume="allow" if mode == "online" else None,
                settings=wandb.Settings(silent=True, console="off"),
            )

    def write(self, record: Record) -> None:
        values = {name: value for name, value in record.items() if value is not None}
        with _without_traces():
            self._run.log(values, step=int(record["epoch"] or 0))

    def close(self) -> None:
        with _without_traces():
            self._run.finish()


@contextmanager
def _without_traces() -> Iterator[None]:
    """Context in which a debug log that cannot be written, such as that of wandb, prints no stack trace."""
    before, logging.raiseExceptions = logging.raiseExceptions, False
    try:
        yield
    finally:
        logging.raiseExceptions = before


_Make = Callable[[Path, Recipe, Sequence[Record]], Logger]
LOGGERS: Mapping[str, _Make] = {"tensorboard": TensorBoardLogger, "wandb": WandbLogger, "csv": CsvLogger}
_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}


def check_loggers(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """The names of the loggers of a run, each once; None stands for "tensorboard" if it is installed.

    A ValueError if there is no such logger, or its package is not installed.
    """
    if names is None:
        return ("tensorboard",) if find_spec("tensorboard") is not None else ()
    for name in (names := as_names(names)):
        if name not in LOGGERS:
            raise ValueError(f"unknown logger '{name}'{did_you_mean(name, LOGGERS)}; choose from: {', '.join(LOGGERS)}")
        package = _PACKAGES.get(name)
        if package is not None and find_spec(package) is None:
            raise ValueError(f"logger '{name}' needs the package {package}: pip install 'moon-sparse[{package}]'")
    return tuple(dict.fromkeys(names))


class Loggers:
    """The loggers of a run. One that fails is named in one warning and not used again."""

    def __init__(self, names: Sequence[str], folder: Path, recipe: Recipe, history: Sequence[Record]) -> None:
        self._loggers: dict[str, Logger] = {}
        for name in names:
            self._try(name, lambda make=LOGGERS[name]: make(folder, recipe, history), opens=True)

    def _try(self, name: str, action: Callable[[], Any], opens: bool = False) -> None:
        try:
            result = action()
        except Exception as error:  # packages of others may raise anything
            if (failed := self._loggers.pop(name, None)) is not None:
                with suppress(Exception):
                    failed.close()
            _log.warning("the %s log is no longer written, but training continues: %s", name, first_line(error))
        else:
            if opens:
                self._loggers[name] = result

    def write(self, record: Record) -> None:
        """Write the record of an epoch."""
        for name, logger in list(self._loggers.items()):
            self._try(name, lambda logger=logger: logger.write(record))

    def close(self) -> None:
        """Finish writing."""
        for name, logger in list(self._loggers.items()):
            self._try(name, logger.close)
