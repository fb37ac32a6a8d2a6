"""Thresholds: exact ranks, and both guarantees in simulations over thousands of calibration sets."""

import numpy as np
import pytest
from scipy.stats import binom

from moon import find_threshold, images_needed, p_values


@pytest.mark.parametrize(
    ("count", "accept", "rank"),
    [(19, 0.95, 1), (20, 0.95, 1), (39, 0.95, 2), (9, 0.9, 1), (10, 0.9, 1), (99, 0.9, 10), (999, 0.999, 1)],
)
def test_the_rank_is_exact(count, accept, rank):
    assert find_threshold(np.arange(1, count + 1), accept).value == rank  # 1 - 0.9 is below 0.1 in floating point


@pytest.mark.parametrize("count", [90, 200, 1000])
def test_the_rank_with_confidence_is_the_largest_that_is_allowed(count):
    rank = find_threshold(np.arange(1, count + 1), 0.95, confidence=0.99).value
    assert binom.cdf(rank - 1, count, 0.05) <= 0.01 < binom.cdf(rank, count, 0.05)


@pytest.mark.parametrize(("accept", "confidence", "count"), [(0.95, None, 19), (0.9, None, 9), (0.95, 0.99, 90)])
def test_too_few_scores_are_rejected_with_the_number_that_is_needed(accept, confidence, count):
    assert images_needed(accept, confidence) == count
    find_threshold(np.arange(count), accept, confidence)
    with pytest.raises(ValueError, match=rf"{count - 1} known scores are too few for .*; give at least {count}"):
        find_threshold(np.arange(count - 1), accept, confidence)


def draws(kind, rng, shape):
    values = rng.standard_t(3, shape)
    return np.round(values) if kind == "ties" else values


@pytest.mark.parametrize("kind", ["continuous", "ties"])
@pytest.mark.parametrize("count", [30, 137])
def test_a_new_known_input_is_accepted_with_the_given_probability(kind, count):
    rng = np.random.default_rng(0)
    sets, new = draws(kind, rng, (4000, count)), draws(kind, rng, 4000)
    accepted = np.mean([find_threshold(one, 0.9).accepts([x])[0] for one, x in zip(sets, new, strict=True)])
    assert accepted >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / 4000)
    if kind == "continuous":  # and not much more often: the rank is the largest that is allowed
        assert accepted <= 0.9 + 1 / (count + 1) + 3 * np.sqrt(0.9 * 0.1 / 4000)


@pytest.mark.parametrize("kind", ["continuous", "ties"])
def test_the_accepted_share_of_all_known_inputs_has_the_given_confidence(kind):
    rng = np.random.default_rng(1)
    population = np.sort(draws(kind, rng, 200_000))
    held = []
    for one in draws(kind, rng, (3000, 150)):
        value = find_threshold(one, 0.9, confidence=0.95).value
        held.append(1 - np.searchsorted(population, value) / len(population) >= 0.9)
    assert np.mean(held) >= 0.95 - 3 * np.sqrt(0.95 * 0.05 / 3000)


def test_p_values_agree_with_the_threshold():
    rng = np.random.default_rng(2)
    known, new = np.round(rng.normal(size=200), 1), np.round(rng.normal(-1, 1, 500), 1)
    p = p_values(new, known)
    assert p.min() >= 1 / 201
    assert p.max() <= 1
    for accept in (0.8, 0.9, 0.95):
        assert np.array_equal(find_threshold(known, accept).accepts(new), p > 1 - accept + 1e-12)


def test_p_values_of_known_inputs_are_not_too_small():
    rng = np.random.default_rng(3)
    sets = rng.normal(size=(3000, 61))
    p = np.array([p_values(one[:1], one[1:])[0] for one in sets])
    for level in (0.05, 0.2, 0.5):
        assert (p <= level).mean() <= level + 3 * np.sqrt(level * (1 - level) / 3000)


@pytest.mark.parametrize("wrong", [{"accept": 0.0}, {"accept": 1.0}, {"accept": 95}, {"confidence": 1.0}])
def test_shares_must_be_fractions(wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))} must be a fraction between 0 and 1"):
        find_threshold(range(1000), **wrong)


@pytest.mark.parametrize(("accept", "confidence"), [(0.3, 0.91), (0.1, 0.99), (0.5, 0.875), (0.7, 0.51)])
def test_with_exactly_enough_images_the_lowest_score_is_the_threshold(accept, confidence):
    scores = np.arange(images_needed(accept, confidence))
    assert find_threshold(scores, accept, confidence).value == 0
