"""The drift monitor: its p-values are uniform, false alarms are bounded, and changes are noticed."""

import sys

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from moon import DriftMonitor
from moon.errors import MissingPackage


def test_p_values_of_exchangeable_scores_are_uniform():
    rng = np.random.default_rng(0)
    for decimals in (9, 0):  # without ties, and with many
        monitor = DriftMonitor(np.round(rng.normal(size=50), decimals))
        found = [monitor._monitor._p_value(x) for x in np.round(rng.normal(size=2000), decimals)]
        assert kstest(found, "uniform").pvalue > 0.01


def test_false_alarms_are_bounded_however_long_one_watches():
    rng = np.random.default_rng(1)
    alarms = [DriftMonitor(rng.normal(size=40), 0.1, seed).update(rng.normal(size=400)) for seed in range(300)]
    assert np.mean(alarms) <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / 300)


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_a_change_is_noticed(shift):
    rng = np.random.default_rng(2)
    monitor = DriftMonitor(rng.normal(size=500))
    assert not monitor.update(rng.normal(size=300))
    assert monitor.update(rng.normal(shift, 1, 200))
    assert monitor.capital > 1
    assert monitor.seen == 500
    assert monitor.update(rng.normal(size=10))  # an alarm stays


def test_the_capital_in_literals():
    monitor = DriftMonitor([1.0, 2.0, 3.0])
    assert monitor.capital == pytest.approx(1)
    monitor._monitor._ties = type("Half", (), {"random": staticmethod(lambda: 0.5)})
    monitor.update([0.0])  # p = (0 + 0.5 * 1) / 4; the bets gain 1.375, 1 and 0.625 on a third each
    assert monitor.capital == pytest.approx((1.375 + 1 + 0.625) / 3)
    monitor.update([0.0])  # p = (0 + 0.5 * 2) / 5
    before = np.array([1.375, 1, 0.625]) / 3
    expected = (0.99 * before + 0.01 * before.sum() / 3) * np.array([1.3, 1, 0.7])
    assert monitor.capital == pytest.approx(expected.sum())


def test_the_rate_of_false_alarms_must_be_a_fraction():
    with pytest.raises(ValueError, match="false_alarm must be a fraction"):
        DriftMonitor([1.0, 2.0], false_alarm=5)


def test_tensors_are_taken_and_bad_scores_refused():
    monitor = DriftMonitor(torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16))
    assert monitor.update(torch.tensor([2.0], requires_grad=True)) is False
    assert (monitor.seen, monitor.false_alarm) == (1, 0.01)
    with pytest.raises(ValueError, match="scores has 1 value"):
        monitor.update([float("nan")])
    with pytest.raises(ValueError, match="finite numbers"):  # without moon
        monitor._monitor.update([float("nan")])


def test_the_runtime_is_needed_when_a_monitor_is_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "moon_runtime", None)
    with pytest.raises(MissingPackage, match="moon-runtime"):
        DriftMonitor([1.0, 2.0])
