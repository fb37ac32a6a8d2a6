"""What the kept runs of the best presets reach. (`make results-check` compares the kept tables with the kept runs.)"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moon.data import BENCHMARKS
from moon.recipe import make_recipe
from moon.score.files import read_summary

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize(
    ("preset", "folder", "near", "far", "accuracy", "ece"),
    [("best-1", "cifar10-300", 0.915, 0.97, 0.94, 0.015), ("best-2", "cifar10-open", 0.94, 0.98, 0.953, 0.008)],
)
def test_the_best_presets_reach_the_published_numbers(preset, folder, near, far, accuracy, ece):
    benchmark = replace(BENCHMARKS["cifar10"], name="cifar10-part")
    recipes = [make_recipe(benchmark, preset=preset, seed=seed, precision="bfloat16") for seed in (0, 1, 2)]
    runs = [read_summary(RESULTS / folder / recipe.name) for recipe in recipes]
    fisher = [run["detectors"]["fisher"] for run in runs]
    assert np.mean([one["near"]["auroc"] for one in fisher]) >= near
    assert np.mean([one["far"]["auroc"] for one in fisher]) >= far
    assert np.mean([run["known"]["accuracy"] for run in runs]) >= accuracy
    assert np.mean([run["known_scaled"]["ece"] for run in runs]) <= ece
    assert [run["images"]["known"] for run in runs] == [9000] * 3
