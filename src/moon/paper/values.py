"""The values of a paper's lines, read from run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from moon.data import Benchmark
from moon.grid.grid import is_done
from moon.paper.spec import FILL_METRICS, KNOWN_METRICS, Line, Scale, called, recipe
from moon.run.train import load_result
from moon.score.score import read_summary, which_scored


class Runs:
    """The results of a scale's runs, read once. Runs of one benchmark that were scored on different images than the
    first are left out: no mean and no test is over different images."""

    def __init__(self, folder: Path, scale: Scale, lines: Mapping[Line, Benchmark]) -> None:
        self.folder, self.scale = folder, scale
        self.rows = {line.data: row for line, row in lines.items()}
        self.seen: dict[str, dict[str, Any]] = {}  # scores by the run's name
        self._names: dict[tuple[Line, int], str] = {}
        self._missing: set[str] = set()
        self._images: dict[str, dict[str, Any]] = {}  # of each benchmark
        self._apart: set[str] = set()
        self._shared: dict[str, set[str]] = {}  # trainings by the run's name

    @property
    def done(self) -> int:
        return len(self.seen)

    @property
    def needed(self) -> int:
        return len(self.seen) + len(self._missing)

    def notes(self) -> list[str]:
        """What a reader must know about the runs."""
        notes = [
            f"{len(self._apart)} runs were scored on other images, or were read in another way, and are left out"
        ] * bool(self._apart)
        same = {tuple(sorted(map(called, words))) for words in self._shared.values() if len(words) > 1}
        return notes + [f"{' and '.join(words)} are the same runs at this length" for words in sorted(same)]

    def names(self) -> tuple[str, ...]:
        return tuple(name for _, name in sorted(self._names.items(), key=lambda entry: entry[0][1]))

    def name(self, line: Line, seed: int) -> str:
        key = replace(line, detector="", metric=""), seed
        if key not in self._names:
            name = recipe(line, self.scale, self.rows[line.data], seed).name
            self._names[key] = name
            self._shared.setdefault(name, set()).add(line.training)
        return self._names[key]

    def scores(self, line: Line, seed: int) -> dict[str, Any] | None:
        name = self.name(line, seed)
        if name not in self.seen and name not in self._missing:
            found = read_summary(self.folder / name) if is_done(self.folder / name) else None
            if found is not None and self._images.setdefault(line.data, which_scored(found)) != which_scored(found):
                self._apart.add(name)
                found = None
            if found is None:
                self._missing.add(name)
            else:
                self.seen[name] = found
        return self.seen.get(name)

    def value(self, line: Line, name: str, seed: int) -> float | None:
        """One value in the units shown."""
        found = self.scores(line, seed)
        if found is None:
            return None
        if line.metric == "time_ratio":
            return self._time_ratio(line, seed)
        if line.metric == "ece_scaled":
            return found["known_scaled"]["ece"]
        if line.metric in KNOWN_METRICS:
            return found["known"][line.metric] * (1 if line.metric == "ece" else 100)
        if line.metric in FILL_METRICS:
            values = [by_set[line.metric] for by_set in found["p_unknown"].values()]
            return None if None in values or not values else mean(values)  # None: no prediction was wrong
        if line.detector in found["search"]:  # its options were chosen for this run; the paper's were not
            return None
        cells = found["detectors"].get(line.detector, {}).get("sets", {})
        row = self.rows[line.data]
        members = {"near": row.near, "far": row.far}.get(name, (name,))
        values = [cells[member][line.metric] for member in members if member in cells]
        return 100 * mean(values) if len(values) == len(members) else None

    def _time_ratio(self, line: Line, seed: int) -> float | None:
        """The run's time over the plain one's, on the same hardware."""
        plain = replace(line, training="plain")
        if self.scores(plain, seed) is None:
            return None
        a, b = (load_result(self.folder / self.name(each, seed)) for each in (line, plain))
        return a["seconds"] / b["seconds"] if a["hardware"] == b["hardware"] else None
