"""The runs of `moon demo`: plain RigL and MOON with RigL, on images that ship inside Python packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moon.recipe import Recipe

BENCHMARK, SPARSITY = "digits", 0.95
PAPER_DETECTORS = ("msp", "odin", "ebo", "knn", "klm")


def recipes(epochs: int, seeds: int) -> dict[str, list[Recipe]]:
    """Return the runs of each method, paired by seed. Batches are smaller than the paper's because the set is small."""
    from moon.recipe import make_recipe  # here, because the command line needs the names above before torch

    common = {"sparsity": SPARSITY, "epochs": epochs, "batch_size": 64}
    return {
        name: [make_recipe(BENCHMARK, objective, seed=seed, **common) for seed in range(seeds)]
        for name, objective in (("plain RigL", "cross-entropy"), ("MOON + RigL", "moon"))
    }
