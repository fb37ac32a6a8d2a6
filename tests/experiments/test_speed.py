import pytest
import torch

from moon.data import BENCHMARKS
from moon.detect import DETECTORS
from moon.experiments import speed

ROW, CPU = BENCHMARKS["digits"], torch.device("cpu")


def test_steps_are_timed_in_turns():
    pairs = [("cross-entropy", "rigl"), ("moon", "rigl"), ("outlier-exposure", "static")]
    rows = speed.time_steps(ROW, pairs, device=CPU, steps=1, rounds=2, batch_size=8)
    assert [(r["objective"], r["topology"]) for r in rows] == pairs
    assert rows[0]["ratio"] == rows[0]["ratio_low"] == 1
    assert all(r["milliseconds"] > 0 and r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in rows)


def test_a_slower_objective_has_a_higher_ratio():
    rows = speed.time_steps(
        ROW, [("cross-entropy", "dense"), ("outlier-exposure", "dense")], device=CPU, steps=2, rounds=5, batch_size=32
    )
    assert rows[1]["ratio"] > 1.5  # three times the images


def test_scores_are_timed_alone_and_together():
    result = speed.time_scores(ROW, DETECTORS, device=CPU, bank=300, queries=100)
    assert set(result["alone"]) == set(DETECTORS) - {"odin"}  # which shares no reading
    assert result["alone"]["knn"] >= result["reading"]["queries"] + result["reading"]["train"]
    assert result["alone"]["msp"] < result["alone"]["knn"]
    assert result["together"] == pytest.approx(sum(result["reading"].values()) + sum(result["own"].values()))
    assert result["ratio"] == result["together"] / max(result["alone"].values())
