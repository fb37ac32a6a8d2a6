"""The runs of `moon demo`: plain RigL and MOON with RigL, on images that ship inside Python packages."""

from __future__ import annotations

from moon.recipe import Recipe, make_recipe

BENCHMARK, SPARSITY = "digits", 0.95
PAPER_DETECTORS = ("msp", "odin", "ebo", "knn", "klm")


def recipes(epochs: int, seeds: int) -> dict[str, list[Recipe]]:
    """Return the runs of each method, paired by seed. Batches are smaller than the paper's because the set is small."""
    common = {"sparsity": SPARSITY, "epochs": epochs, "batch_size": 64}
    quiet = max(1, epochs // 20)  # the same fraction of the run as the paper's
    return {
        "plain RigL": [make_recipe(BENCHMARK, "cross-entropy", seed=seed, **common) for seed in range(seeds)],
        "MOON + RigL": [
            make_recipe(BENCHMARK, "moon", options={"quiet_epochs": quiet}, seed=seed, **common)
            for seed in range(seeds)
        ],
    }
