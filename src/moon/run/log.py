"""`log.jsonl` of a run: one JSON line per epoch, each with a digest of the recipe and all lines so far."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moon.errors import DamagedCheckpoint
from moon.files import open_to_append, write_text, writing
from moon.recipe import Recipe
from moon.records import json_digest, parse_json, read_limited
from moon.run.loggers import Loggers
from moon.training.loop import Record

_log = logging.getLogger(__name__)
_DIGEST = "log_sha256"
_MAX_BYTES = 2**27  # of some 300,000 epochs


class Log:
    """Writes `log.jsonl`, and the same records to other loggers. Resuming removes the lines after the checkpoint."""

    def __init__(self, folder: Path, next_epoch: int, loggers: Sequence[str] = ()) -> None:
        self.path = folder / "log.jsonl"
        lines = read_log(folder)
        kept = [line for line in lines if line["epoch"] < next_epoch]
        if again := len(lines) - len(kept):
            _log.info("trained again, because no checkpoint contains them: the last %d epoch(s) of the log", again)
        if len(kept) < next_epoch:
            _log.warning(
                "%s: has %d of the %d epochs that were trained; the others are lost", self.path, len(kept), next_epoch
            )
        self._digest = _start(folder)
        write_text(self.path, "".join(map(self._line, kept)))
        self._loggers = Loggers(loggers, folder, Recipe.load(folder / "recipe.json"), kept)

    def _line(self, record: Record) -> str:
        """The next line of the file."""
        record = json.loads(json.dumps(record, allow_nan=False))
        self._digest = _next(self._digest, record)
        return json.dumps(record | {_DIGEST: self._digest}) + "\n"

    def write(self, record: Record) -> None:
        with writing(self.path), open_to_append(self.path) as file:
            file.write(self._line(record).encode())
            file.flush()
            os.fsync(file.fileno())
        self._loggers.write(record)

    def close(self) -> None:
        self._loggers.close()


def _start(folder: Path) -> str:
    """The digest before the first line."""
    return Recipe.load(folder / "recipe.json").digest


def _next(digest: str, line: Record) -> str:
    """The digest after a line."""
    return json_digest([digest, line])[:16]


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Read `log.jsonl`, one dict per epoch; none if there is no log.

    An incomplete last line, left by a killed process, is skipped. A `DamagedCheckpoint` if the log is damaged or
    belongs to another run.
    """
    return _read(folder)[0]


def log_digest(folder: Path) -> str:
    """The digest after the last line of `log.jsonl`; "" for that of an earlier version, or none."""
    return _read(folder)[1]


def _read(folder: Path) -> tuple[list[dict[str, Any]], str]:
    path = folder / "log.jsonl"
    try:
        written = read_limited(path, _MAX_BYTES).removesuffix(b"\n").split(b"\n")
    except FileNotFoundError:
        return [], ""
    lines, digest = [], ""
    for number, line in enumerate(written, start=1):
        try:
            found = parse_json(line.decode(errors="replace"))
        except ValueError as error:
            if number == len(written):
                break
            raise _damaged(path, number, error) from error
        try:
            if not isinstance(found, dict) or not isinstance(found.get("epoch"), int):
                raise ValueError("it is not the record of an epoch")
            own = found.pop(_DIGEST, None)
            if number == 1 and own is not None:
                digest = _start(folder)
            if digest and own != (digest := _next(digest, found)):
                raise ValueError("its digest does not match")
        except ValueError as error:
            raise _damaged(path, number, error) from error
        lines.append(found)
    return lines, digest


def _damaged(path: Path, number: int, reason: object) -> DamagedCheckpoint:
    return DamagedCheckpoint(
        f"{path}: line {number} is damaged or belongs to another run ({reason}); restore the file, or delete it to "
        "go on without the log of earlier epochs"
    )
