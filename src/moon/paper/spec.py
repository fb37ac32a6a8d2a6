"""The contents of the paper's tables and figures, and the scale of the evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moon.suggest import did_you_mean

EPOCHS = 100  # of the paper's runs; where it counts epochs, shorter runs use the same share
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
KNOWN_METRICS = ("accuracy", "ece", "ece_scaled")  # measured on known inputs, independent of the unknown sets
OURS = ("controls", "summary", "detectors", "fill", "topologies", "ablations", "rivals", "mnist")  # not in the paper
EXTRAS = ("flops", "theory")  # keys that need no runs
P_UNKNOWN_METRICS = ("p_unknown_correct", "p_unknown_wrong", "p_unknown_unknown")  # the mean of p_{K+1}


@dataclass(frozen=True)
class Measurement:
    """What a row of numbers measures: a trained network, a detector and a metric.

    Attributes:
        data: The paper's data set: mnist, cifar10, cifar100 or imagenet.
        topology: The sparse training method, or `dense`.
        sparsity: Share of zero weights, 0 for dense networks.
        training: How the network is trained: a key of `recipes.TRAININGS`, a preset, an objective, or `w_f=`, `T_e=`
            or `votes=` with a value, which is MOON with that parameter.
        detector: The detector, or "" for metrics of known inputs and times.
        metric: The metric, such as `auroc`.
    """

    data: str
    topology: str
    sparsity: float
    training: str
    detector: str = ""
    metric: str = "auroc"


@dataclass(frozen=True)
class Item:
    """A table or figure.

    Attributes:
        key: Its name on the command line, such as `table1`.
        title: Its title.
        measurements: What its numbers measure.
        columns: Which fields of a number make its column: `set` or fields of `Measurement`. The others make its row.
        pairs: Pairs of trainings that are compared.
        means_only: Whether only the near and far means are shown, not the single unknown sets.
        note: A remark for readers.
        draw: The function in `moon.paper.figures` that draws it, or "" for a table.
    """

    key: str
    title: str
    measurements: tuple[Measurement, ...]
    columns: tuple[str, ...] = ("set",)
    pairs: tuple[tuple[str, str], ...] = (("moon", "plain"),)
    means_only: bool = False
    note: str = ""
    draw: str = ""


@dataclass(frozen=True)
class Scale:
    """How large the evaluation is.

    Attributes:
        benchmarks: The benchmark to use for each of the paper's data sets.
        epochs: Epochs per run.
        seeds: Number of seeds.
        other_seeds: Number of seeds for all networks other than plain RigL and MOON with RigL; None: the same number.
        sparsities: The sparsities to run; each of the paper's is replaced by the nearest. (): the paper's.
        settings: Recipe settings that all runs share.
    """

    benchmarks: Mapping[str, str]
    epochs: int = EPOCHS
    seeds: int = 3
    other_seeds: int | None = None
    sparsities: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_nearest_sparsity(self, measurement: Measurement) -> Measurement:
        """Return the measurement at the nearest sparsity that is run at this scale."""
        if not self.sparsities or measurement.topology == "dense":
            return measurement
        nearest = min(self.sparsities, key=lambda sparsity: abs(sparsity - measurement.sparsity))
        return replace(measurement, sparsity=nearest)

    def seeds_for(self, measurement: Measurement) -> range:
        """Return the seeds of a measurement's runs."""
        is_main = measurement.topology == "rigl" and measurement.training in ("plain", "moon")
        return range(self.seeds if is_main or self.other_seeds is None else min(self.seeds, self.other_seeds))

    def with_benchmarks(self, pairs: Iterable[str]) -> Scale:
        """Return the same scale with other benchmarks, given as `DATA=NAME`.

        Raises:
            ValueError: If a pair does not have this form, or the paper has no such data set.
        """
        given = {}
        for pair in pairs:
            data, _, name = pair.partition("=")
            if not name or data not in self.benchmarks:
                raise ValueError(
                    f"'{pair}' is not of the form DATA=NAME with a data set of the paper"
                    f"{did_you_mean(data, self.benchmarks)}; choose DATA from: {', '.join(self.benchmarks)}"
                )
            given[data] = name
        return replace(self, benchmarks=dict(self.benchmarks) | given)


FULL = Scale({"mnist": "mnist", "cifar10": "cifar10", "cifar100": "cifar100", "imagenet": "imagenet-v1"})
MINI = Scale(
    dict.fromkeys(FULL.benchmarks, "digits"),
    epochs=2,
    seeds=2,
    other_seeds=1,
    sparsities=(0.7, 0.9, 0.99),
    settings={"batch_size": 64},
)
