import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, strategies as st
from scipy.special import expit, logit, ndtr, stdtr

from moon.metrics import (
    auroc,
    auroc_difference,
    auroc_interval,
    bootstrap,
    holm,
    interval,
    paired_test,
    verdict,
)

Z = 1.959963984540054  # P(|Z| > 1.96) = 5%

quarters = st.integers(-8, 8).map(lambda n: n / 4)
runs = st.lists(quarters, min_size=2, max_size=6)
scores = st.lists(quarters, min_size=2, max_size=30)
# Two scores per image, with few distinct values, so that ties are common.
paired_scores = st.lists(st.tuples(quarters, quarters), min_size=2, max_size=20)
p_values = st.lists(st.floats(0, 1) | st.just(float("nan")), max_size=12)


def brute_placements(known, unknown):
    wins = np.array([[(k > u) + 0.5 * (k == u) for u in unknown] for k in known])
    return wins.mean(1), wins.mean(0)


def brute_variance(known, unknown):
    return sum(np.var(side, ddof=1) / len(side) for side in brute_placements(known, unknown))


def brute_covariance(a, b):
    """The (2, 2) covariance of the two AUROCs, as the paper has it: S_10 / m + S_01 / n."""
    sides = zip(brute_placements(*a), brute_placements(*b), strict=True)
    return sum(np.cov(of_a, of_b) / len(of_a) for of_a, of_b in sides)


def test_interval_in_literals():
    # mean 4, standard deviation sqrt(21), and the 97.5% quantile of t with 2 degrees of freedom
    half = 4.302652729749464 * math.sqrt(21 / 3)
    assert interval([3, 9, 0]) == pytest.approx((4 - half, 4 + half))
    assert interval([1, 2], level=0.5) == pytest.approx((1, 2))  # t = 1 with 1 degree of freedom
    assert interval([0.9, 0.9]) == pytest.approx((0.9, 0.9))


@given(runs, quarters)
def test_interval_is_scipys_and_moves_with_the_values(values, shift):
    low, high = interval(values)
    assert low <= np.mean(values) <= high
    assert interval([shift - value for value in values]) == pytest.approx((shift - high, shift - low))
    if np.ptp(values):
        theirs = scipy.stats.ttest_1samp(values, 0).confidence_interval(0.95)
        assert (low, high) == pytest.approx(tuple(theirs))


@pytest.mark.parametrize("count", [2, 3, 12])
def test_interval_has_its_nominal_coverage(count):
    samples = np.random.default_rng(0).normal(size=(4000, count))
    held = np.mean([low <= 0 <= high for low, high in map(interval, samples)])
    assert held == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors


@pytest.mark.parametrize("spread", [1.0, 2.0])
def test_the_seed_is_the_unit_of_analysis(spread):
    # Differences at 4 sparsities for each of 3 seeds: what a seed does to all four makes them dependent.
    random = np.random.default_rng(0)
    differences = random.normal(0, spread, (4000, 3, 1)) + random.normal(size=(4000, 3, 4))

    def coverage(samples):
        return np.mean([low <= 0 <= high for low, high in map(interval, samples)])

    assert coverage(differences.mean(2)) == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors
    assert coverage(differences.reshape(-1, 12)) < 0.8  # 12 values, as if they were independent


def test_paired_test_in_literals():
    # d = 0, 1: t = 0.5 / 0.5 = 1 with one degree of freedom, p = 1 - 2 / pi * arctan(1).
    assert paired_test([3, 5], [3, 4]) == pytest.approx(0.5)
    # d = 1, 2, 3: t = 2 * sqrt(3) with two degrees of freedom, p = 1 - t / sqrt(t^2 + 2).
    assert paired_test([2, 4, 6], [1, 2, 3]) == pytest.approx(1 - np.sqrt(6 / 7))
    assert paired_test([1, 2, 3], [2, 4, 6]) == pytest.approx(1 - np.sqrt(6 / 7))
    assert paired_test([0, 1], [1, 0]) == 1


def test_paired_test_without_spread_is_one_or_nan():
    assert paired_test([0.1, 0.2, 0.7], [0.1, 0.2, 0.7]) == 1
    # The same difference for every seed, up to rounding, as happens with counts of few images: no spread.
    assert math.isnan(paired_test([0.1, 0.1, 0.1], [0, 0, 0]))
    assert math.isnan(paired_test([340 / 360, 345 / 360], [339 / 360, 344 / 360]))
    assert verdict([340 / 360, 345 / 360], [339 / 360, 344 / 360], math.nan) == "no evidence"


@given(st.lists(st.tuples(quarters, quarters), min_size=2, max_size=10))
def test_paired_test_is_students_formula(pairs):
    a, b = np.array(pairs).T
    difference, count = a - b, len(pairs)
    if np.ptp(difference) > 0:
        t = difference.mean() / (difference.std(ddof=1) / np.sqrt(count))
        assert paired_test(a, b) == pytest.approx(2 * stdtr(count - 1, -abs(t)), rel=1e-12, abs=1e-15)
    assert np.array_equal(paired_test(a, b), paired_test(b, a), equal_nan=True)


# V: 1 is above 0 only, 2 is above 0 and ties with 2, 3 is above both. W: 0 is below all, 2 ties with 2 and is below 3.
KNOWN, UNKNOWN = [1, 2, 3], [0, 2]  # V = 1/2, 3/4, 1; W = 1, 1/2; A = 3/4; variance 1/16/3 + 1/8/2 = 1/12


def test_auroc_interval_in_literals():
    step = Z * np.sqrt(1 / 12) / (3 / 16)
    assert auroc_interval(KNOWN, UNKNOWN) == pytest.approx((expit(np.log(3) - step), expit(np.log(3) + step)))
    # One standard deviation on each side.
    step = np.sqrt(1 / 12) / (3 / 16)
    expected = expit(np.log(3) - step), expit(np.log(3) + step)
    assert auroc_interval(KNOWN, UNKNOWN, level=ndtr(1) - ndtr(-1)) == pytest.approx(expected)


def test_auroc_interval_without_variance_is_a_point():
    assert auroc_interval([2, 3], [0, 1]) == (1, 1)
    assert auroc_interval([0, 1], [2, 3]) == (0, 0)
    assert auroc_interval([1, 1], [1, 1]) == (0.5, 0.5)


@given(scores, scores)
def test_auroc_interval_is_delongs_by_brute_force(known, unknown):
    low, high = auroc_interval(known, unknown)
    area = auroc(known, unknown)
    assert 0 <= low <= area + 1e-12
    assert area - 1e-12 <= high <= 1
    if 0 < area < 1:
        step = Z * np.sqrt(brute_variance(known, unknown)) / (area * (1 - area))
        assert (low, high) == pytest.approx((expit(logit(area) - step), expit(logit(area) + step)), abs=1e-9)
    assert auroc_interval(unknown, known) == pytest.approx((1 - high, 1 - low), abs=1e-9)


def test_auroc_interval_has_its_nominal_coverage():
    rng = np.random.default_rng(0)
    truth = ndtr(1.5 / np.sqrt(2))
    for level in (0.8, 0.95):
        ends = [auroc_interval(rng.normal(1.5, 1, 60), rng.normal(0, 1, 40), level) for _ in range(1500)]
        assert np.mean([low <= truth <= high for low, high in ends]) == pytest.approx(level, abs=0.025)


def test_auroc_difference_in_literals():
    # All scores of b tie: V = W = 1/2. The differences are 0, 1/4, 1/2 and 1/2, 0; variance 1/16/3 + 1/8/2 = 1/12.
    expected = (0.25, 2 * ndtr(-0.25 * np.sqrt(12)))
    assert auroc_difference(KNOWN, UNKNOWN, [0, 0, 0], [0, 0]) == pytest.approx(expected)
    # b permutes the known scores: the areas are equal, the placements are not.
    assert auroc_difference(KNOWN, UNKNOWN, [3, 1, 2], UNKNOWN) == (0, 1)


def test_auroc_difference_without_variance_is_the_limit():
    assert auroc_difference(KNOWN, UNKNOWN, np.exp(KNOWN), np.exp(UNKNOWN)) == (0, 1)
    assert auroc_difference([1, 1], [0, 0], [1, 1], [1, 1]) == (0.5, 0)
    assert auroc_difference([0, 0], [1, 1], [1, 1], [0, 0]) == (-1, 0)


@given(paired_scores, paired_scores)
def test_auroc_difference_is_delongs_by_brute_force(known, unknown):
    (known_a, known_b), (unknown_a, unknown_b) = np.array(known).T, np.array(unknown).T
    difference, p = auroc_difference(known_a, unknown_a, known_b, unknown_b)
    assert difference == pytest.approx(auroc(known_a, unknown_a) - auroc(known_b, unknown_b), abs=1e-12)
    covariance = brute_covariance((known_a, unknown_a), (known_b, unknown_b))
    variance = covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1]
    if variance > 1e-9:
        assert p == pytest.approx(2 * ndtr(-abs(difference) / np.sqrt(variance)), abs=1e-9)
    assert auroc_difference(known_b, unknown_b, known_a, unknown_a) == pytest.approx((-difference, p), abs=1e-12)


def test_auroc_difference_has_its_nominal_error_rate():
    """For two correlated scores of equal AUROC, 5% of the p-values are below 5%."""
    rng = np.random.default_rng(0)

    def p_of_equals():
        known, unknown = rng.normal(1, 1, (60, 1)), rng.normal(0, 1, (40, 1))
        (known_a, known_b), (unknown_a, unknown_b) = (
            (shared + rng.normal(0, 0.5, (len(shared), 2))).T for shared in (known, unknown)
        )
        return auroc_difference(known_a, unknown_a, known_b, unknown_b)[1]

    assert np.mean([p_of_equals() < 0.05 for _ in range(1500)]) == pytest.approx(0.05, abs=0.02)


def test_bootstrap_in_literals():
    # The mean of two resampled known is 0, 1/2 or 1 with probability 1/4, 1/2, 1/4; that of the unknown is always 5.
    def distance(known, unknown):
        return unknown.mean() - known.mean()

    assert bootstrap(distance, [0, 1], [5, 5, 5]) == (4, 5)
    assert bootstrap(distance, [0, 1], [5, 5, 5], level=0.4) == (4.5, 4.5)


def test_bootstrap_resamples_known_and_unknown_separately():
    resamples = []

    def watch(known, unknown):
        assert (len(known), len(unknown)) == (30, 20)
        assert set(known) <= set(range(30))
        assert set(unknown) <= set(range(100, 120))
        resamples.append((*known, *unknown))
        return 0.0

    assert bootstrap(watch, range(30), range(100, 120), resamples=50) == (0, 0)
    assert len(resamples) == len(set(resamples)) == 50


def test_bootstrap_is_scipys():
    rng = np.random.default_rng(0)
    known, unknown = rng.normal(1, 1, 40), rng.normal(0, 1, 30)

    def distance(known, unknown, axis=-1):
        return known.mean(axis) - unknown.mean(axis)

    theirs = scipy.stats.bootstrap((known, unknown), distance, n_resamples=5000, method="percentile", rng=1)
    ours = bootstrap(distance, known, unknown, resamples=5000)
    assert ours == pytest.approx(tuple(theirs.confidence_interval), abs=0.04)


def test_holm_in_literals():
    # Sorted: 3 * 0.01, then 2 * 0.03, then 1 * 0.04, which may not be below the one before.
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.5]) == pytest.approx([1, 1])
    assert holm([0.02]) == pytest.approx([0.02])
    # NaN means no test and is not counted.
    assert holm([float("nan"), 0.04, 0.01]) == pytest.approx([float("nan"), 0.04, 0.02], nan_ok=True)
    assert np.isnan(holm([float("nan")])).all()
    assert holm([]).size == 0


@given(p_values, st.floats(0.001, 0.999))
def test_holm_rejects_what_the_step_down_procedure_rejects(p, level):
    tested = sorted((value, i) for i, value in enumerate(p) if not np.isnan(value))
    rejected = set()
    for step, (value, i) in enumerate(tested):
        if (len(tested) - step) * value > level:
            break
        rejected.add(i)
    assert {i for i, value in enumerate(holm(p)) if value <= level} == rejected


@given(p_values)
def test_holm_keeps_the_order_and_the_caller_s_array(p):
    given_p = np.array(p)
    adjusted = holm(given_p)
    np.testing.assert_array_equal(given_p, p)  # the caller's array is not changed
    np.testing.assert_array_equal(np.isnan(adjusted), np.isnan(given_p))
    tested = ~np.isnan(given_p)
    assert (adjusted[tested] >= given_p[tested]).all()
    assert (adjusted[tested] <= 1).all()
    assert (np.diff(adjusted[tested][np.argsort(given_p[tested])]) >= 0).all()
    np.testing.assert_array_equal(holm(p[::-1]), adjusted[::-1])


@pytest.mark.parametrize(
    ("a", "b", "p", "higher_is_better", "expected"),
    [
        ([0.9, 0.8], [0.7, 0.7], 0.01, True, "better"),
        ([0.9, 0.8], [0.7, 0.7], 0.01, False, "worse"),
        ([0.7, 0.7], [0.9, 0.8], 0.01, True, "worse"),
        ([0.7, 0.7], [0.9, 0.8], 0.01, False, "better"),
        ([0.9, 0.1], [0.7, 0.2], 0.01, True, "better"),  # the mean decides, not each run
        ([0.1, 0.9], [0.2, 0.7], 0.01, True, "better"),
        ([0.9, 0.8], [0.7, 0.7], 0.05, True, "no evidence"),
        ([0.9, 0.8], [0.7, 0.7], float("nan"), True, "no evidence"),
        ([0.9, 0.8], [0.9, 0.8], 0.01, True, "no evidence"),
        ([0.9, 0.8], [0.9, 0.8], 0.01, False, "no evidence"),
        ([0.9], [0.7], 0.0, True, "better"),  # one run, tested over images
    ],
)
def test_verdict(a, b, p, higher_is_better, expected):
    assert verdict(a, b, p, higher_is_better=higher_is_better) == expected


def test_verdict_uses_its_level():
    assert verdict([1, 2], [0, 0], 0.07, level=0.1) == "better"
    assert verdict([1, 2], [0, 0], 0.03, level=0.01) == "no evidence"


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: interval([]), "values is empty"),
        (lambda: interval([0.9]), "values has one value.* at least two"),
        (lambda: interval([0.9, float("nan")]), "not finite"),
        (lambda: interval([0.9, 0.8], level=95), "level must be a fraction between 0 and 1, not 95"),
        (lambda: paired_test([1], [2]), "a has one value"),
        (lambda: paired_test([1, 2], [1, 2, 3]), "a and b differ in length: 2 and 3"),
        (lambda: auroc_interval([1], [0, 1]), "known_scores has one value"),
        (lambda: auroc_interval([1, 2], [0]), "unknown_scores has one value"),
        (lambda: auroc_interval([1, 2], [0, 1], level=1), "level must be"),
        (lambda: auroc_difference([1, 2], [0, 1], [1, 2, 3], [0, 1]), "known_a and known_b differ"),
        (lambda: auroc_difference([1, 2], [0, 1], [1, 2], [0, 1, 2]), "unknown_a and unknown_b differ"),
        (lambda: bootstrap(auroc, [1, 2], [0]), "unknown_scores has one value"),
        (lambda: bootstrap(auroc, [1, 2], [0, 1], resamples=0), "resamples must be at least 1"),
        (lambda: bootstrap(auroc, [1, 2], [0, 1], level=0), "level must be"),
        (lambda: bootstrap(lambda known, unknown: float("nan"), [1, 2], [0, 1]), "statistic has 1000 value"),
        (lambda: holm([0.5, 1.5]), r"p_values must be in \[0, 1\]"),
        (lambda: holm([-0.5]), r"p_values must be in \[0, 1\]"),
        (lambda: holm([[0.5]]), "1 dimension"),
        (lambda: verdict([1], [0], 1.5), r"p must be in \[0, 1\]"),
        (lambda: verdict([1], [0], -0.5), r"p must be in \[0, 1\]"),
        (lambda: verdict([1], [0, 1], 0.5), "differ in length"),
        (lambda: verdict([1], [0], 0.5, level=5), "level must be"),
    ],
)
def test_invalid_input_is_an_error(call, what):
    with pytest.raises(ValueError, match=what):
        call()
