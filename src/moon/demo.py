"""The demonstration: plain RigL beside MOON on RigL, on the images that come inside packages."""

from __future__ import annotations

from moon.data import BENCHMARKS
from moon.recipe import build
from moon.recipe.recipe import Recipe

BENCHMARK, SPARSITY = "digits", 0.95
DETECTORS = ("msp", "odin", "ebo", "knn", "klm")  # the paper's


def recipes(epochs: int, seeds: int) -> dict[str, list[Recipe]]:
    """The runs of the two methods, paired by seed; the set is small, so batches are smaller than the paper's."""
    row = BENCHMARKS[BENCHMARK]
    common = {"sparsity": SPARSITY, "epochs": epochs, "batch_size": 64}
    quiet = max(1, epochs // 20)  # the paper's share of the run
    return {
        "plain RigL": [build.recipe(row, "cross-entropy", seed=seed, **common) for seed in range(seeds)],
        "MOON + RigL": [
            build.recipe(row, "moon", options={"quiet_epochs": quiet}, seed=seed, **common) for seed in range(seeds)
        ],
    }
