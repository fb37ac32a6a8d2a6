import pytest
import torch

from moon import timing as speed
from moon.data import BENCHMARKS
from moon.detect import DETECTORS

ROW, CPU = BENCHMARKS["digits"], torch.device("cpu")


def test_steps_are_timed_in_turns():
    pairs = [("cross-entropy", "rigl"), ("moon", "rigl"), ("outlier-exposure", "static")]
    rows = speed.time_steps(ROW, pairs, device=CPU, steps=1, rounds=2, batch_size=8)
    assert [(r["objective"], r["topology"]) for r in rows] == pairs
    assert all(set(r) == {"objective", "topology", "plain"} for r in rows)  # nothing is captured on a CPU
    plain = [r["plain"] for r in rows]
    assert plain[0]["ratio"] == plain[0]["ratio_low"] == 1
    assert all(r["milliseconds"] > 0 and r["ratio_low"] <= r["ratio"] <= r["ratio_high"] for r in plain)


def test_a_slower_objective_has_a_higher_ratio():
    rows = speed.time_steps(
        ROW, [("cross-entropy", "dense"), ("outlier-exposure", "dense")], device=CPU, steps=2, rounds=5, batch_size=32
    )
    assert rows[1]["plain"]["ratio"] > 1.5  # three times the images


def test_a_limit_is_what_the_network_needs_at_the_rates_of_the_machine():
    row = BENCHMARKS["cifar10"]
    found = speed.limits(row, device=CPU, net=None, batch_size=128, precision="float32")
    assert found["flops"] / 128 == pytest.approx(3.33e9, rel=0.01)  # ResNet-18, forward and back
    maps = 5 * (64 * 32 * 32 + 128 * 16 * 16 + 256 * 8 * 8 + 512 * 4 * 4)  # by hand: five outputs a stage
    assert found["traffic_bytes"] == speed.PASSES * 128 * maps * 4
    assert found["matrix_milliseconds"] == pytest.approx(1000 * found["flops"] / found["matrix_flops_per_second"])
    assert found["milliseconds"] > found["matrix_milliseconds"]


def test_scores_are_timed_alone_and_together():
    result = speed.time_scores(ROW, DETECTORS, device=CPU, bank=300, queries=100)
    assert set(result["alone"]) == set(DETECTORS) - {"odin"}  # which shares no reading
    assert result["alone"]["knn"] >= result["reading"]["queries"] + result["reading"]["train"]
    assert result["alone"]["msp"] < result["alone"]["knn"]
    assert result["together"] == pytest.approx(sum(result["reading"].values()) + sum(result["own"].values()))
    assert result["from_evidence"] == pytest.approx(result["together"] - sum(result["reading"].values()))
    assert 0 < result["limit"] < 60
    assert result["ratio"] == result["together"] / max(result["alone"].values())


def test_a_detector_of_others_is_timed_with_their_scores_and_alone_without(monkeypatch):
    given = []
    original = DETECTORS["fisher"].score_given

    def seen(detector, evidence, scores):
        given.append(len(scores))
        return original(detector, evidence, scores)

    monkeypatch.setattr(DETECTORS["fisher"], "score_given", seen)
    speed.time_scores(ROW, ["msp", "knn", "fisher"], device=CPU, bank=300, queries=100, from_evidence=True)
    assert given[0] == 2  # which also warms up
    assert given[-1] == 0


def test_nothing_is_read_where_evidence_is_made_up(monkeypatch):
    monkeypatch.setattr(speed.Bench, "read", lambda *_: pytest.fail("was read"))
    result = speed.time_scores(ROW, ["msp", "knn", "mds"], device=CPU, bank=300, queries=100, from_evidence=True)
    assert set(result["own"]) == {"msp", "knn", "mds"}
    assert result["read"] is False
