"""`todo.json` in a run folder: what a worker must still score after training."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from moon.records import read_record, write_record
from moon.run.folder import REMAINING


class Todo(NamedTuple):
    """What remains to be scored: these detectors, on these unknown sets in place of the benchmark's."""

    detectors: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    far: tuple[str, ...] = ()

    @classmethod
    def read(cls, folder: Path) -> Todo:
        """Read it from a run folder. A ValueError if it is damaged."""
        try:
            found = read_record(folder / REMAINING)
        except FileNotFoundError:
            return cls()
        except ValueError as error:
            raise ValueError(f"{folder / REMAINING}: is damaged ({error}); delete it and run the grid again") from error
        return cls(*(tuple(found.get(name, ())) for name in cls._fields))

    def write(self, folder: Path) -> None:
        """Write it into a run folder."""
        write_record(folder / REMAINING, {name: list(values) for name, values in self._asdict().items() if values})
