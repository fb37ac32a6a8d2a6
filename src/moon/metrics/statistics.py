"""Statistics: confidence intervals over runs and over images, and tests of one method against another.

There are few runs (one value per seed) and many images. An interval over images says nothing about other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moon.arrays import Numbers, check_same_length, to_array

Interval = tuple[float, float]
Verdict = Literal["better", "no evidence", "worse"]


def _sample(values: Numbers, name: str) -> NDArray[np.float64]:
    """Return `values` as a checked array of at least two numbers."""
    sample = to_array(values, name).astype(np.float64)
    if len(sample) < 2:
        raise ValueError(f"{name} has one value, which says nothing about its spread; give at least two")
    return sample


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be a fraction between 0 and 1, not {level}")


def _percentile_interval(resampled: NDArray, level: float) -> Interval:
    """Return the extremes after dropping (1 - level) / 2 of the resamples, rounded down, at each end."""
    ordered = np.sort(resampled)
    dropped = int((1 - level) / 2 * len(ordered))
    return float(ordered[dropped]), float(ordered[-1 - dropped])


def interval(values: Numbers, level: float = 0.95) -> Interval:
    """Student's t interval of the mean over runs, with one value per seed: mean ± t * std / sqrt(n).

    t is the quantile with n - 1 degrees of freedom. For normally distributed values the interval contains the true mean
    with probability `level`, also for two or three values, where it is wide. (A percentile bootstrap interval of three
    values is their range, which contains it with probability 75%.)

    Args:
        values: One value per run, at least two.
        level: The confidence level, in (0, 1).

    Returns:
        The lower and the upper end.

    Example:
        >>> from moon import interval
        >>> low, high = interval([0.91, 0.93, 0.92])
        >>> round(low, 3), round(high, 3)
        (0.895, 0.945)
    """
    from scipy.special import stdtrit  # imported here, so that `import moon` stays light

    _check_level(level)
    sample = _sample(values, "values")
    half = float(stdtrit(len(sample) - 1, (1 + level) / 2) * sample.std(ddof=1) / math.sqrt(len(sample)))
    return float(sample.mean()) - half, float(sample.mean()) + half


def paired_test(a: Numbers, b: Numbers) -> float:
    """Two-sided p-value of the paired t-test, for two methods run with the same seeds.

    t = mean(a - b) / (std(a - b) / sqrt(n)) has n - 1 degrees of freedom. If all differences are the same, up to
    rounding, there is no spread to test against: the result is 1 if they are zero and NaN otherwise.

    Args:
        a: One value per seed, at least two.
        b: The values of the other method, with the same seeds in the same order.

    Returns:
        The p-value, or NaN.

    Example:
        >>> from moon import paired_test
        >>> round(paired_test([0.92, 0.94, 0.96], [0.91, 0.92, 0.93]), 4)
        0.0742
    """
    from scipy.stats import ttest_rel  # imported here, so that `import moon` stays light

    a, b = _sample(a, "a"), _sample(b, "b")
    check_same_length(a, b, "a and b")
    difference = a - b
    # ttest_rel would divide by a spread that is zero or consists of rounding errors.
    if np.ptp(difference) <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):
        return 1.0 if abs(difference[0]) <= 1e-12 else math.nan
    return float(ttest_rel(a, b).pvalue)


def _share_below(scores: NDArray, others: NDArray) -> NDArray[np.float64]:
    """Return, for each score, the share of `others` below it. Ties count half."""
    others = np.sort(others)
    return (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / (2 * len(others))


def _placements(known: NDArray, unknown: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of unknown below each known score and of known above each unknown one; AUROC is their mean."""
    return _share_below(known, unknown), _share_below(-unknown, -known)


def _variance(of_known: NDArray, of_unknown: NDArray) -> float:
    """Return DeLong's variance from placements: var(of_known) / m + var(of_unknown) / n."""
    return float(of_known.var(ddof=1) / len(of_known) + of_unknown.var(ddof=1) / len(of_unknown))


def auroc_interval(known_scores: Numbers, unknown_scores: Numbers, level: float = 0.95) -> Interval:
    """DeLong's confidence interval of one AUROC A over images: logit(A) ± z * std(A) / (A * (1 - A)), mapped back.

    The variance comes from placements (DeLong et al. 1988), computed by sorting (Sun and Xu 2014). The logit keeps both
    ends in [0, 1]. If the variance is zero (A is exactly 0 or 1, or all scores are equal), the interval is (A, A): a
    limit, not certainty.

    Args:
        known_scores: Scores of known inputs, at least two.
        unknown_scores: Scores of unknown inputs, at least two.
        level: The confidence level, in (0, 1).

    Returns:
        The lower and the upper end.

    Example:
        >>> from moon import auroc_interval
        >>> low, high = auroc_interval([1, 2, 3], [0, 2])
        >>> round(low, 4), round(high, 4)
        (0.128, 0.984)
    """
    _check_level(level)
    placements = _placements(_sample(known_scores, "known_scores"), _sample(unknown_scores, "unknown_scores"))
    area = float(placements[0].mean())
    if area in (0, 1):
        return area, area
    z = NormalDist().inv_cdf((1 + level) / 2)
    # Adding on the logit scale multiplies the odds.
    factor = math.exp(z * math.sqrt(_variance(*placements)) / (area * (1 - area)))
    return area / (area + (1 - area) * factor), area / (area + (1 - area) / factor)


def auroc_difference(known_a: Numbers, unknown_a: Numbers, known_b: Numbers, unknown_b: Numbers) -> tuple[float, float]:
    """DeLong's test of two AUROCs on the same images: AUROC of a minus AUROC of b, and its two-sided p-value.

    z = difference / sqrt(var(V_a - V_b) / m + var(W_a - W_b) / n), with V and W the placements of the m known and n
    unknown images (DeLong et al. 1988). Subtracting image by image accounts for the correlation. If the variance is
    zero, the p-value is the limit: 1 if the areas are equal, else 0.

    Args:
        known_a: Scores of the known images by a, at least two.
        unknown_a: Scores of the unknown images by a, at least two.
        known_b: Scores of the same known images by b, in the same order.
        unknown_b: Scores of the same unknown images by b, in the same order.

    Returns:
        The difference and its p-value.

    Example:
        >>> from moon import auroc_difference
        >>> difference, p = auroc_difference([1, 2, 3], [0, 2], [0, 0, 0], [0, 0])
        >>> difference, round(p, 4)
        (0.25, 0.3865)
    """
    known_a, unknown_a = _sample(known_a, "known_a"), _sample(unknown_a, "unknown_a")
    known_b, unknown_b = _sample(known_b, "known_b"), _sample(unknown_b, "unknown_b")
    check_same_length(known_a, known_b, "known_a and known_b")
    check_same_length(unknown_a, unknown_b, "unknown_a and unknown_b")
    pairs = zip(_placements(known_a, unknown_a), _placements(known_b, unknown_b), strict=True)
    of_known, of_unknown = (a - b for a, b in pairs)
    difference, variance = float(of_known.mean()), _variance(of_known, of_unknown)
    if variance == 0:
        return difference, float(difference == 0)
    return difference, math.erfc(abs(difference) / math.sqrt(2 * variance))  # P(|Z| >= |z|), Z standard normal


def bootstrap(
    statistic: Callable[[NDArray, NDArray], float],
    known_scores: Numbers,
    unknown_scores: Numbers,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval over images of any statistic of two sets of scores, such as FPR-95.

    Known and unknown scores are resampled separately, so their numbers stay the same.

    Args:
        statistic: A function of (known scores, unknown scores), such as `fpr_at_tpr`.
        known_scores: Scores of known inputs, at least two.
        unknown_scores: Scores of unknown inputs, at least two.
        level: The confidence level, in (0, 1).
        resamples: The number of resamples, at least 1.
        seed: The seed of the resampling.

    Returns:
        The lower and the upper end.

    Example:
        >>> from moon import bootstrap, fpr_at_tpr
        >>> bootstrap(fpr_at_tpr, range(20, 120), range(50), resamples=100)
        (0.34, 0.68)
    """
    _check_level(level)
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}; 1000 are enough for a 95% interval")
    known, unknown = _sample(known_scores, "known_scores"), _sample(unknown_scores, "unknown_scores")
    rng = np.random.default_rng(seed)
    resampled = [statistic(rng.choice(known, len(known)), rng.choice(unknown, len(unknown))) for _ in range(resamples)]
    return _percentile_interval(to_array(resampled, "the resampled statistic"), level)


def holm(p_values: ArrayLike) -> NDArray[np.float64]:
    """Holm's adjusted p-values: the i-th lowest of m is max over j <= i of min(1, (m - j + 1) p_j) (Holm 1979).

    Among the tests with an adjusted p-value below a level, the probability of any false finding is at most that level.
    (SciPy has no such function; its `false_discovery_control` controls a weaker error rate.)

    Args:
        p_values: p-values in [0, 1], one-dimensional. NaN means that no test was possible; it stays NaN and is not
            counted in m.

    Returns:
        The adjusted p-values, in the order given.

    Example:
        >>> from moon import holm
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.array(p_values, dtype=np.float64)
    if p.ndim != 1:
        raise ValueError(f"p_values must have 1 dimension, not shape {p.shape}")
    if (p < 0).any() or (p > 1).any():
        raise ValueError(f"p_values must be in [0, 1], or NaN where there was no test; found {p}")
    tests = np.count_nonzero(~np.isnan(p))
    order = np.argsort(p)[:tests]  # NaN are sorted last
    p[order] = np.minimum(1, np.maximum.accumulate(np.arange(tests, 0, -1) * p[order]))
    return p


def verdict(a: Numbers, b: Numbers, p: float, *, higher_is_better: bool = True, level: float = 0.05) -> Verdict:
    """Say whether a is better or worse than b: the sign of mean(a - b), if the p-value is below `level`.

    Args:
        a: One value per run.
        b: The values of the other method, in the same order.
        p: The (adjusted) p-value of the comparison. NaN, where no test was possible, gives "no evidence".
        higher_is_better: Whether higher values are better.
        level: The significance level, in (0, 1).

    Returns:
        "better", "worse" or "no evidence".

    Example:
        >>> from moon import verdict
        >>> verdict([0.92, 0.94], [0.91, 0.92], p=0.01)
        'better'
    """
    _check_level(level)
    a, b = to_array(a, "a").astype(np.float64), to_array(b, "b").astype(np.float64)
    check_same_length(a, b, "a and b")
    if p < 0 or p > 1:
        raise ValueError(f"p must be in [0, 1], or NaN where there was no test, not {p}")
    gain = (a - b).mean()
    if not p < level or gain == 0:
        return "no evidence"
    return "better" if (gain > 0) == higher_is_better else "worse"
