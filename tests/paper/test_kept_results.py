"""What the kept runs of the preset `best` reach. (`make results-check` compares the kept tables with the kept runs.)"""

from pathlib import Path

import numpy as np

from moon.score.files import read_summary

RESULTS = Path(__file__).parents[2] / "results"


def test_the_best_preset_reaches_the_published_numbers():
    runs = [read_summary(path.parent) for path in sorted(RESULTS.glob("cifar10-300/*moon-logitnorm*/scores.json"))]
    fisher = [run["detectors"]["fisher"] for run in runs]
    assert np.mean([one["near"]["auroc"] for one in fisher]) >= 0.915
    assert np.mean([one["far"]["auroc"] for one in fisher]) >= 0.97
    assert np.mean([run["known"]["accuracy"] for run in runs]) >= 0.94
    assert np.mean([run["known_scaled"]["ece"] for run in runs]) <= 0.015
    assert [run["images"]["known"] for run in runs] == [9000] * 3  # seeds
