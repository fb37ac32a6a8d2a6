import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from moon import accuracy, brier, ece, nll


def test_accuracy():
    assert accuracy(torch.tensor([0, 1, 2, 2]), [0, 1, 2, 0]) == 0.75


def test_ece_in_literals():
    # Bins of 0.5: (0, 0.5] holds 0.5 and 0.3; (0.5, 1] holds 0.6 and 1.0.
    confidence, correct = [0.5, 0.3, 0.6, 1.0], [True, False, True, True]
    expected = (abs(1 - 0.8) + abs(2 - 1.6)) / 4
    assert ece(confidence, correct, bins=2) == pytest.approx(expected)


def test_ece_counts_a_confidence_of_exactly_one_and_zero():
    assert ece([1.0, 1.0], [0, 0]) == 1.0
    assert ece([0.0], [1]) == 1.0


def test_ece_bins_are_closed_on_the_right():
    # 1/3 falls into the first of three bins, together with 0.1, so their gaps partly cancel.
    together = ece([1 / 3, 0.1], [0, 1], bins=3)
    assert together == pytest.approx(abs(-1 / 3 + 0.9) / 2)
    assert ece([1 / 3 + 1e-9, 0.1], [0, 1], bins=3) == pytest.approx((1 / 3 + 0.9) / 2)


def test_ece_against_a_loop():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0, 1, 500)
    correct = rng.uniform(0, 1, 500) < confidence**2
    total = 0.0
    for i in range(15):
        inside = (confidence > i / 15) & (confidence <= (i + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(correct[inside].mean() - confidence[inside].mean())
    assert ece(confidence, correct) == pytest.approx(total, abs=1e-12)


def test_nll_and_brier_in_literals():
    p = [[0.5, 0.25, 0.25], [0.125, 0.75, 0.125]]
    assert nll(p, [0, 1]) == pytest.approx(-(np.log(0.5) + np.log(0.75)) / 2)
    assert nll(p, [0, 1]) == pytest.approx(log_loss([0, 1], p, labels=[0, 1, 2]))
    assert brier(p, [0, 1]) == pytest.approx(((0.25 + 0.0625 * 2) + (0.0625 + 2 * 0.015625)) / 2)


def test_the_unknown_probability_counts_as_a_wrong_class():
    # p_1..p_K sum to 0.5; the other 0.5 is the unknown output.
    assert brier([[0.5, 0.0]], [0]) == pytest.approx(0.25 + 0.25)
    assert brier([[1.0, 0.0]], [0]) == 0


def test_a_probability_of_zero_stays_finite():
    assert nll([[0.0, 1.0]], [0]) == pytest.approx(-np.log(np.finfo(float).tiny))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: accuracy([], []), "empty"),
        (lambda: accuracy([1], [1, 2]), "differ in length"),
        (lambda: ece([1.5], [1]), "are these logits"),
        (lambda: ece([float("nan")], [1]), "not finite"),
        (lambda: ece([0.5], [1], bins=0), "bins"),
        (lambda: nll([[2.0, 0.5]], [0]), "are these logits"),
        (lambda: nll([[0.5, 0.5]], [2]), r"labels must be in 0..1"),
        (lambda: brier([[0.5, 0.5]], [-1]), "labels"),
    ],
)
def test_invalid_input_is_an_error(call, what):
    with pytest.raises(ValueError, match=what):
        call()
