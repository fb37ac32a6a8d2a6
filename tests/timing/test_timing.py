"""What `moon bench` measures. The clock is replaced where a test needs a particular time."""

import itertools

import pytest
import torch

from moon import timing
from moon.data import BENCHMARKS
from moon.recipe import table
from moon.timing import limits, scores, steps

DIGITS, CPU = BENCHMARKS["digits"], torch.device("cpu")


def test_steps_are_timed_in_turns():
    pairs = [("cross-entropy", "rigl"), ("moon", "rigl"), ("outlier-exposure", "static")]
    records = timing.time_steps(DIGITS, pairs, device=CPU, steps=1, rounds=2, batch_size=8)
    assert [(r["objective"], r["topology"]) for r in records] == pairs
    assert all(set(r) == {"objective", "topology", "plain"} for r in records)  # nothing is captured on a CPU
    assert records[0]["plain"]["ratio"] == records[0]["plain"]["ratio_low"] == 1


def test_a_ratio_is_the_median_over_rounds_of_times_in_the_same_round(monkeypatch):
    times = {"cross-entropy": iter([1.0, 2.0, 8.0]), "moon": iter([2.0, 6.0, 12.0])}
    order = []

    def seconds(walk, device):
        name = type(walk.args[0].objective).__name__
        order.append(name)
        return next(times["moon" if name == "Moon" else "cross-entropy"])

    monkeypatch.setattr(steps, "seconds", seconds)
    pairs = [("cross-entropy", "rigl"), ("moon", "rigl")]
    plain, moon = timing.time_steps(DIGITS, pairs, device=CPU, steps=2, rounds=3, batch_size=8)
    assert order == ["CrossEntropy", "Moon"] * 3
    assert plain["plain"]["milliseconds"] == 1000
    assert moon["plain"]["milliseconds"] == 3000
    assert moon["plain"]["ratio"] == moon["plain"]["by_base"] == 2  # the median of 2, 3 and 1.5
    assert (moon["plain"]["ratio_low"], moon["plain"]["ratio_high"]) == (1.75, 2.5)


def test_without_flops_there_is_no_limit(caplog):
    assert limits.cost_or_none(torch.nn.GRU(4, 4), (3, 4), {}) is None
    assert "there is no limit, because the FLOPs are not counted" in caplog.text


def test_the_limit_of_a_step_follows_from_flops_and_traffic(monkeypatch):
    monkeypatch.setattr(limits, "machine_rates", lambda device, dtype: (1e12, 1e11))
    found = timing.step_limits(BENCHMARKS["cifar10"], device=CPU, net=None, batch_size=128, precision="float32")
    assert found["flops"] / 128 == pytest.approx(3.33e9, rel=0.01)  # ResNet-18, forward and backward
    maps = 5 * (64 * 32 * 32 + 128 * 16 * 16 + 256 * 8 * 8 + 512 * 4 * 4)  # five outputs per stage
    assert found["traffic_bytes"] == limits.PASSES * 128 * maps * 4
    assert found["matrix_milliseconds"] == pytest.approx(found["flops"] / 1e9)
    assert found["milliseconds"] == pytest.approx(found["flops"] / 1e9 + found["traffic_bytes"] / 1e8)


def test_machine_rates_are_what_was_computed_over_the_best_time(monkeypatch):
    clock = itertools.cycle([0.5, 0.25, 1.0])
    monkeypatch.setattr(limits, "seconds", lambda act, device: next(clock))
    rate, bandwidth = limits.machine_rates(CPU, torch.float32)
    assert rate == 2 * 1024**3 / 0.25
    assert bandwidth == 2 * 2**24 * 4 / 0.25


def test_scores_are_timed_alone_and_together(monkeypatch):
    monkeypatch.setattr(scores, "seconds", lambda act, device: act() is None or 1.0)  # a forward pass returns None
    result = timing.time_scores(DIGITS, table("detector"), device=CPU, bank=300, queries=100)
    assert set(result["alone"]) == set(table("detector")) - {
        "odin",
        "rotpred",
    }  # these need forward passes of their own
    assert result["reading"] == {"queries": 1.0, "train": 1.0, "validation": 1.0}
    assert result["alone"]["msp"] == 1 + 1  # the queries
    assert result["alone"]["knn"] == 1 + 2  # and the training images
    assert result["alone"]["fisher"] == 1 + 3  # and the validation images
    assert result["together"] == 3 + len(result["own"])
    assert result["from_evidence"] == len(result["own"])
    assert result["ratio"] == result["together"] / 4
    assert result["limit"] > result["limit_sparse"] > 0


def test_a_combination_is_timed_with_the_scores_of_its_parts_and_alone_without(monkeypatch):
    given = []
    fisher = table("detector")["fisher"]
    original = fisher.score_given

    def recorded(detector, evidence, parts):
        given.append(len(parts))
        return original(detector, evidence, parts)

    monkeypatch.setattr(fisher, "score_given", recorded)
    timing.time_scores(DIGITS, ["msp", "knn", "fisher"], device=CPU, bank=300, queries=100, from_evidence=True)
    assert given[0] == 2  # warms up
    assert given[-1] == 0


def test_random_evidence_needs_no_forward_pass(monkeypatch):
    monkeypatch.setattr(scores.BenchmarkImages, "evidence", lambda *_: pytest.fail("ran a forward pass"))
    result = timing.time_scores(DIGITS, ["msp", "knn", "mds"], device=CPU, bank=300, queries=100, from_evidence=True)
    assert set(result["own"]) == {"msp", "knn", "mds"}
    assert result["read"] is False
