"""Read the values of measurements from run folders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

from moon.data import Benchmark
from moon.paper.names import display_name
from moon.paper.recipes import recipe_for
from moon.paper.spec import KNOWN_METRICS, P_UNKNOWN_METRICS, Measurement, Scale
from moon.run.folder import is_done, load_result
from moon.score.files import read_summary, which_scored


class RunValues:
    """The values of measurements, read from the folders of their runs; each folder is read once.

    All runs of a benchmark must be scored on the same images in the same way as the first one; others are excluded, so
    that no mean and no test mixes different images.
    """

    def __init__(self, folder: Path, scale: Scale, benchmarks: Mapping[Measurement, Benchmark], root: Path) -> None:
        self.folder, self.scale, self.root = folder, scale, root
        self.benchmarks = {measurement.data: benchmark for measurement, benchmark in benchmarks.items()}
        self.summaries: dict[str, dict[str, Any]] = {}  # scores.json by the run's name
        self._names: dict[tuple[Measurement, int], str] = {}
        self._missing: set[str] = set()
        self._images: dict[str, dict[str, Any]] = {}  # which images were scored, by data set
        self._excluded: set[str] = set()
        self._trainings: dict[str, set[str]] = {}  # by the run's name

    @property
    def done(self) -> int:
        """Number of runs with usable scores, among those that were requested."""
        return len(self.summaries)

    @property
    def needed(self) -> int:
        """Number of runs that were requested."""
        return len(self.summaries) + len(self._missing)

    def notes(self) -> list[str]:
        """What readers must know about the runs."""
        count = len(self._excluded)
        excluded = "1 run is excluded because it was" if count == 1 else f"{count} runs are excluded because they were"
        notes = [f"{excluded} scored on other images or in another way"] * bool(count)
        same = {tuple(sorted(map(display_name, names))) for names in self._trainings.values() if len(names) > 1}
        return notes + [f"{' and '.join(names)} are the same runs at this length" for names in sorted(same)]

    def names(self) -> tuple[str, ...]:
        """The names of all runs that were requested, ordered by seed."""
        return tuple(name for _, name in sorted(self._names.items(), key=lambda entry: entry[0][1]))

    def name(self, measurement: Measurement, seed: int) -> str:
        """The name of a measurement's run."""
        key = replace(measurement, detector="", metric=""), seed
        if key not in self._names:
            recipe = recipe_for(measurement, self.scale, self.benchmarks[measurement.data], seed, self.root)
            name = recipe.name
            self._names[key] = name
            self._trainings.setdefault(name, set()).add(measurement.training)
        return self._names[key]

    def summary(self, measurement: Measurement, seed: int) -> dict[str, Any] | None:
        """The scores.json of a measurement's run, or None if it is missing, unfinished or excluded."""
        name = self.name(measurement, seed)
        if name not in self.summaries and name not in self._missing:
            found = read_summary(self.folder / name) if is_done(self.folder / name) else None
            if found is not None:
                images = which_scored(found)
                if self._images.setdefault(measurement.data, images) != images:
                    self._excluded.add(name)
                    found = None
            if found is None:
                self._missing.add(name)
            else:
                self.summaries[name] = found
        return self.summaries.get(name)

    def value(self, measurement: Measurement, name: str, seed: int) -> float | None:
        """Return one value in the units that tables show, or None if it was not measured.

        `name` is an unknown set, `near`, `far`, or "" for metrics of known inputs.
        """
        summary = self.summary(measurement, seed)
        if summary is None:
            return None
        metric = measurement.metric
        if metric == "time_ratio":
            return self._time_ratio(measurement, seed)
        if metric == "ece_scaled":
            return summary["known_scaled"]["ece"]
        if metric in KNOWN_METRICS:
            return summary["known"][metric] * (1 if metric == "ece" else 100)
        if metric in P_UNKNOWN_METRICS:
            values = [by_set[metric] for by_set in summary["p_unknown"].values()]
            return None if None in values or not values else mean(values)  # None: no prediction was wrong
        if measurement.detector in summary["search"]:  # options tuned for this run are not comparable
            return None
        by_set = summary["detectors"].get(measurement.detector, {}).get("sets", {})
        benchmark = self.benchmarks[measurement.data]
        members = {"near": benchmark.near, "far": benchmark.far}.get(name, (name,))
        values = [by_set[member][metric] for member in members if member in by_set]
        return 100 * mean(values) if len(values) == len(members) else None

    def _time_ratio(self, measurement: Measurement, seed: int) -> float | None:
        """The run's time divided by that of the plain run, if both had the same hardware."""
        plain = replace(measurement, training="plain")
        if self.summary(plain, seed) is None:
            return None
        ours, theirs = (load_result(self.folder / self.name(each, seed)) for each in (measurement, plain))
        return ours["seconds"] / theirs["seconds"] if ours["hardware"] == theirs["hardware"] else None
