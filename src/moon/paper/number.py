"""One number of a table: our values next to the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import mean

from moon.data import BENCHMARKS, Benchmark
from moon.paper.published import PAPER_NAMES, published
from moon.paper.spec import P_UNKNOWN_METRICS, Item, Measurement
from moon.paper.values import RunValues
from moon.results.format import mean_and_deviation, signed

_DIGITS = dict.fromkeys(("ece", "ece_scaled", *P_UNKNOWN_METRICS), 4) | {"time_ratio": 3}


@dataclass(frozen=True)
class Number:
    """One number of a table, in the units that the table shows.

    Attributes:
        measurement: What is measured.
        set: The unknown set, `near`, `far`, or "" for metrics of known inputs.
        ours: Our values by seed; empty if nothing was measured.
        paper: The paper's mean, and its standard deviation or None; None if the paper has no such number.
    """

    measurement: Measurement
    set: str
    ours: Mapping[int, float]
    paper: tuple[float, float | None] | None

    @property
    def digits(self) -> int:
        """Number of decimal places."""
        return _DIGITS.get(self.measurement.metric, 2)

    @property
    def values(self) -> list[float]:
        """Our values."""
        return list(self.ours.values())

    def text(self) -> str:
        """Our mean and deviation: '88.17 ± 0.20', or '-' if nothing was measured."""
        return mean_and_deviation(self.values, self.digits, 1.0)

    def paper_text(self) -> str:
        """The paper's mean and our difference from it: 'paper 87.43, +0.74', or '' if the paper has no such number."""
        if self.paper is None:
            return ""
        text = f"paper {self.paper[0]:.{self.digits}f}"
        return f"{text}, {signed(mean(self.values) - self.paper[0], self.digits)}" if self.ours else text


def read_numbers(item: Item, benchmarks: Mapping[Measurement, Benchmark], runs: RunValues) -> list[Number]:
    """Read all numbers of a table or figure, in the order of the table."""
    numbers = []
    for measurement, benchmark in benchmarks.items():
        for name in _sets(item, measurement, benchmark):
            values = {seed: runs.value(measurement, name, seed) for seed in runs.scale.seeds_for(measurement)}
            ours = {seed: value for seed, value in values.items() if value is not None}
            numbers.append(Number(measurement, name, ours, _paper(item, measurement, name, benchmark)))
    return numbers


def _sets(item: Item, measurement: Measurement, benchmark: Benchmark) -> list[str]:
    """The unknown sets of a measurement and their means, or "" for what is measured on known inputs."""
    if not measurement.detector:
        return [""]
    near, far = (["near"] if benchmark.near else [], ["far"] if benchmark.far else [])
    return near + far if item.means_only else [*benchmark.near, *near, *benchmark.far, *far]


def _paper(item: Item, measurement: Measurement, name: str, benchmark: Benchmark) -> tuple[float, float | None] | None:
    """The paper's number for a set. A mean over sets counts only if the benchmark has the same sets as the paper."""
    group = {"near": benchmark.near, "far": benchmark.far}.get(name)
    if group is not None:
        theirs = getattr(BENCHMARKS.get(measurement.data), name, ())
        if {PAPER_NAMES.get(s, s) for s in group} != {PAPER_NAMES.get(s, s) for s in theirs}:
            return None
    return published(item.key).get((measurement, PAPER_NAMES.get(name, name)))
