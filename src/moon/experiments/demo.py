"""The demonstration: plain RigL beside MOON on RigL, on the images that come inside packages."""

from __future__ import annotations

from moon.data import BENCHMARKS
from moon.experiments import build
from moon.experiments.recipe import Recipe

BENCHMARK, SPARSITY = "digits", 0.95
METHODS = {"plain RigL": "cross-entropy", "MOON + RigL": "moon"}


def recipes(epochs: int, seeds: int) -> dict[str, list[Recipe]]:
    """The runs of the two methods, paired by seed.

    The set is small and the run short: batches are smaller than the paper's, and the topology is rewired four times an
    epoch, as it is on CIFAR-10.
    """
    row = BENCHMARKS[BENCHMARK]
    common = {"sparsity": SPARSITY, "epochs": epochs, "batch_size": 64, "delta_t_steps": 14}
    return {
        method: [build.recipe(row, objective, seed=seed, **common) for seed in range(seeds)]
        for method, objective in METHODS.items()
    }
