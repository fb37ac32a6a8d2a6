"""The kept scores of every image: AUROC from their levels is that of `scores.json`, detector by detector."""

from pathlib import Path

import numpy as np
import pytest

from moon.metrics import auroc
from moon.score.files import read_summary

RESULTS = Path(__file__).parents[2] / "results"


@pytest.mark.parametrize("folder", ["cifar10", "cifar10-300", "cifar10-open", "tin100"])
def test_levels_belong_to_the_detectors_they_are_named_after(folder):
    paths = sorted((RESULTS / folder / "scores").glob("*.npz"))
    assert paths
    for path in paths:
        detectors = read_summary(RESULTS / folder / path.stem)["detectors"]
        with np.load(path) as file:
            levels = {key: file[key] for key in file.files if "/" in key}
        for key, values in levels.items():
            detector, _, name = key.partition("/")
            if name != "known" and name in detectors[detector]["sets"]:
                found = auroc(levels[f"{detector}/known"], values)
                assert found == pytest.approx(detectors[detector]["sets"][name]["auroc"], abs=5e-4), key
