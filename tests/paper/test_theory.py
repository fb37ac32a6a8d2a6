"""The numerical demonstration of Section 4."""

import json

import numpy as np
import pytest
import torch

from moon.objectives.moon import moon_loss
from moon.paper import theory
from moon.paper.theory import ball, densities, density_gap, gap, least_weight, minimiser, observe, train

SHARES = np.linspace(0.5, 1, 51)


@pytest.fixture(scope="module")
def result():
    """All numbers, from networks that took only two steps."""
    return theory.demonstrate(seeds=2, steps=2)


def test_gap_in_literals():
    mass = torch.tensor([[3.0, 1.0], [1.0, 1.0]])  # 6 in all, of which 3 + 1 are predicted correctly
    found = gap(torch.tensor([0.9, 0.6]), torch.tensor([0, 1]), mass)
    assert found.item() == pytest.approx((0.9 * 4 + 0.6 * 2 - 4) / 6)


def test_the_points_fill_the_ball_evenly():
    points = ball(0.7)
    distance = (points - torch.tensor([0.7, 0.0])).norm(dim=1)
    assert distance.max() <= theory.RADIUS
    assert distance.square().mean() == pytest.approx(theory.RADIUS**2 / 2, rel=1e-4)  # of a uniform disc
    assert points.mean(0).tolist() == pytest.approx([0.7, 0.0], abs=1e-3)


def test_definition_4_2_depends_on_the_scale_of_features():
    for centre in (-1.5, theory.HARD):  # an easy region and a hard one
        assert density_gap(centre, 0.1) > 1 > 0 > density_gap(centre, 1.0) > density_gap(centre, 3.0)
    accuracy = torch.distributions.Normal(0, 1).cdf(torch.tensor(1.5)).item()
    assert -1 < density_gap(-1.5, 1000.0) < -accuracy  # the density vanishes, only the accuracy remains


def test_the_true_posterior_has_a_gap_only_on_the_other_class():
    mass = densities(ball(theory.HARD))
    posterior = mass / mass.sum(1, keepdim=True)
    assert gap(*posterior.max(1), mass).item() == pytest.approx(0, abs=1e-6)
    other = mass * torch.tensor([0.0, 1.0])
    assert (other.sum() / mass.sum()).item() == pytest.approx(0.18, abs=0.01)
    assert gap(*posterior.max(1), other).item() == pytest.approx(0.80, abs=0.01)  # the confidence; the accuracy is 0


def test_cross_entropy_is_minimal_at_the_share():
    for q in (0.0, 0.3, 0.5, 0.8, 1.0):
        assert minimiser(q, 0).tolist() == pytest.approx([q, 1 - q, 0])


def test_the_moon_loss_is_minimal_below_the_share():
    """p_1 = q / (q + (1-q)(1+w)), or a tie below q = (1+w)/(2+w), as long as p_3 is 0."""
    assert minimiser(0.8, 1).tolist() == pytest.approx([2 / 3, 1 / 3, 0])
    assert minimiser(0.6, 1).tolist() == pytest.approx([0.5, 0.5, 0])
    assert minimiser(0.2, 1).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    for w in theory.WEIGHTS:
        confidence = np.array([minimiser(q, w)[:2].max() for q in SHARES])
        assert (confidence <= SHARES + 1e-9).all()
        assert (np.diff(confidence) >= -1e-4).all()  # confidence ranks points as before, except for ties


@pytest.mark.parametrize("w", [1.0, 4.0, 10.0])
def test_the_minimiser_minimises_moon_loss(w):
    steps = 40
    grid = [(i, j, steps - i - j) for i in range(1, steps) for j in range(1, steps - i + 1)]
    losses = [[moon_loss((torch.tensor([p]) / steps).log(), torch.tensor([y]), w).item() for p in grid] for y in (0, 1)]
    losses = np.array(losses)
    for q in (0.5, 0.6, 0.75, 0.9, 0.97):
        expected = q * losses[0] + (1 - q) * losses[1]
        best = minimiser(q, w)
        assert np.abs(np.array(grid[expected.argmin()]) / steps - best).max() <= 1.5 / steps
        best[1] = 1 - best[0] - best[2]
        best[0] += 1e-6  # on a tie, class 1 is the arg-max
        at_best = [moon_loss(torch.tensor(best[None]).log(), torch.tensor([y]), w).item() for y in (0, 1)]
        assert q * at_best[0] + (1 - q) * at_best[1] <= expected.min() + 1e-5


def test_least_weight_that_uses_the_unknown_output():
    assert least_weight(2) == pytest.approx(2.5668, abs=1e-4)
    assert least_weight(10) == pytest.approx(0.9450, abs=1e-4)
    assert least_weight(100) == pytest.approx(0.5893, abs=1e-4)
    assert all(minimiser(q, 0.99 * least_weight(2))[2] == 0 for q in SHARES)
    assert minimiser(0.5, 1.02 * least_weight(2))[2] > 0
    assert minimiser(0.5, 10)[2] == pytest.approx(0.306, abs=1e-3)
    assert minimiser(0.98, 4)[2] == 0 < minimiser(0.9, 4)[2]


@pytest.mark.slow
def test_trained_networks():
    few, plain, moon = (observe(train(w, n, 2, 150)) for w, n in ((None, 100), (None, 1500), (10.0, 1500)))
    assert min(few["gap"]["everywhere"]) > 0.03  # a network that overfits is over-confident
    assert np.abs(plain["gap"]["everywhere"]).max() < 0.02
    assert min(plain["gap"]["D_2"]) > 0.5
    assert max(moon["gap"]["everywhere"]) < -0.08  # MOON is under-confident
    assert set(plain["p_unknown"]["hard"]) == {0.0}
    assert min(moon["p_unknown"]["hard"]) > 0.15 > 0.05 > max(moon["p_unknown"]["far"])
    assert max(moon["confidence"]["between"]) < min(plain["confidence"]["between"]) - 0.1
    assert min(moon["confidence"]["far"]) > 0.9
    assert np.mean(moon["auroc"]["between"]) == pytest.approx(np.mean(plain["auroc"]["between"]), abs=0.05)


def test_the_numbers_are_json_and_reproducible(result):
    text = json.dumps(result, allow_nan=False)
    assert json.loads(text) == result
    assert json.dumps(theory.demonstrate(seeds=2, steps=2)) == text
    assert [(run["count"], run["w"]) for run in result["trained"][:2]] == [(100, None), (100, 1.0)]
    assert all(len(values) == 2 for run in result["trained"] for values in run["gap"].values())
