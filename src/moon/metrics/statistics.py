"""How sure the numbers are: intervals over runs and over images, tests of one method against another.

Runs are few (one value a seed), images are many; an interval over images says nothing about other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moon.metrics.checks import numbers, same_length

Interval = tuple[float, float]
Verdict = Literal["better", "no evidence", "worse"]

MOST_RUNS_IN_FULL = 6  # 6**6 = 46,656 resamples; 7**7 would be 823,543
RESAMPLES = 10_000


def _sample(values, name: str) -> NDArray[np.float64]:
    """`values` as a checked array of at least two."""
    sample = numbers(values, name).astype(np.float64)
    if len(sample) < 2:
        raise ValueError(f"{name} has one value, which says nothing about its spread; give at least two")
    return sample


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must be a fraction between 0 and 1, not {level}")


def _middle(resampled: NDArray, level: float) -> Interval:
    """The ends of what is left of the resamples when (1 - level) / 2 of them, rounded down, is cut off each side."""
    ordered = np.sort(resampled)
    cut = int((1 - level) / 2 * len(ordered))
    return float(ordered[cut]), float(ordered[-1 - cut])


def interval(values, level: float = 0.95) -> Interval:
    """Percentile bootstrap interval of the mean over runs, one value a seed (Efron 1979).

    Up to six values give all n**n resamples; more give 10,000 from a fixed seed, so the same values have the same
    interval. Few values make it too narrow: of two or three, the 95% interval is the lowest and the highest value, and
    holds the mean of a symmetric distribution with probability 1 - 2**(1 - n), 50% or 75%.
    """
    _check_level(level)
    values = np.sort(_sample(values, "values"))
    count = len(values)
    if count <= MOST_RUNS_IN_FULL:
        means = reduce(np.add.outer, [values] * count).ravel() / count
    else:
        means = np.random.default_rng(0).choice(values, (RESAMPLES, count)).mean(1)
    return _middle(means, level)


def paired_test(a, b) -> float:
    """Two-sided p of the paired t-test, t = mean(a - b) / (std(a - b) / sqrt(n)), for values that share seeds.

    Differences that are all the same, to rounding, have no spread to test against: 1 if they are zero, else NaN.
    """
    from scipy.special import stdtr  # here, so that `import moon` stays light

    a, b = _sample(a, "a"), _sample(b, "b")
    same_length(a, b, "a and b")
    difference = a - b
    if np.ptp(difference) <= 1e-12 * max(np.abs(a).max(), np.abs(b).max()):
        return 1.0 if abs(difference[0]) <= 1e-12 else math.nan
    count = len(difference)
    t = difference.mean() / (difference.std(ddof=1) / math.sqrt(count))
    return float(2 * stdtr(count - 1, -abs(t)))


def _share_below(scores: NDArray, others: NDArray) -> NDArray[np.float64]:
    """For each score the share of `others` below it, ties counting half."""
    others = np.sort(others)
    return (np.searchsorted(others, scores, "left") + np.searchsorted(others, scores, "right")) / (2 * len(others))


def _placements(known: NDArray, unknown: NDArray) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """For each known score the share of unknown below it, for each unknown that of known above; AUROC is the mean."""
    return _share_below(known, unknown), _share_below(-unknown, -known)


def _variance(of_known: NDArray, of_unknown: NDArray) -> float:
    """DeLong's variance from placements: var(of_known) / m + var(of_unknown) / n."""
    return float(of_known.var(ddof=1) / len(of_known) + of_unknown.var(ddof=1) / len(of_unknown))


def auroc_interval(known, unknown, level: float = 0.95) -> Interval:
    """DeLong's interval of one AUROC A over images: logit(A) ± z * std(A) / (A * (1 - A)), turned back.

    The variance is from placements (DeLong et al. 1988), found by sorting (Sun and Xu 2014). The logit keeps the ends
    in [0, 1]. Without variance (an AUROC of exactly 0 or 1, or all scores equal) it is (A, A): a limit, not certainty.
    """
    _check_level(level)
    placements = _placements(_sample(known, "known"), _sample(unknown, "unknown"))
    area = float(placements[0].mean())
    if area in (0, 1):
        return area, area
    z = NormalDist().inv_cdf((1 + level) / 2)
    # A step on the logit scale is a factor on the odds.
    factor = math.exp(z * math.sqrt(_variance(*placements)) / (area * (1 - area)))
    return area / (area + (1 - area) * factor), area / (area + (1 - area) / factor)


def auroc_difference(known_a, unknown_a, known_b, unknown_b) -> tuple[float, float]:
    """AUROC of a minus AUROC of b on the same images in the same order, and its two-sided p (DeLong et al. 1988).

    z = difference / sqrt(var(V_a - V_b) / m + var(W_a - W_b) / n), with V and W the placements of the m known and n
    unknown images: subtracting image by image takes the correlation into account. No variance gives the limit: p = 1 if
    the areas are equal, else 0.
    """
    known_a, unknown_a = _sample(known_a, "known_a"), _sample(unknown_a, "unknown_a")
    known_b, unknown_b = _sample(known_b, "known_b"), _sample(unknown_b, "unknown_b")
    same_length(known_a, known_b, "known_a and known_b")
    same_length(unknown_a, unknown_b, "unknown_a and unknown_b")
    pairs = zip(_placements(known_a, unknown_a), _placements(known_b, unknown_b), strict=True)
    of_known, of_unknown = (a - b for a, b in pairs)
    difference, variance = float(of_known.mean()), _variance(of_known, of_unknown)
    if variance == 0:
        return difference, float(difference == 0)
    return difference, math.erfc(abs(difference) / math.sqrt(2 * variance))  # P(|Z| >= |z|), Z standard normal


def bootstrap(
    statistic: Callable[[NDArray, NDArray], float],
    known,
    unknown,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Percentile bootstrap interval over images of `statistic(known, unknown)`, such as FPR-95.

    Known and unknown are resampled apart, so that their numbers stay what they are.
    """
    _check_level(level)
    if resamples < 1:
        raise ValueError(f"resamples must be at least 1, not {resamples}; 1000 are enough for a 95% interval")
    known, unknown = _sample(known, "known"), _sample(unknown, "unknown")
    chance = np.random.default_rng(seed)
    resampled = [
        statistic(chance.choice(known, len(known)), chance.choice(unknown, len(unknown))) for _ in range(resamples)
    ]
    return _middle(numbers(resampled, "the resampled statistic"), level)


def holm(p_values) -> NDArray[np.float64]:
    """Holm's adjusted p-values in the order given; the i-th lowest of m is max over j <= i of min(1, (m - j + 1) p_j).

    Those below a level are findings of which any is false with at most that probability (Holm 1979). NaN, where no test
    was possible, stays NaN and is not counted in m.
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


def verdict(a, b, p: float, *, higher_is_better: bool = True, level: float = 0.05) -> Verdict:
    """Whether a is better or worse than b: the sign of mean(a - b), if the (adjusted) p is below `level`.

    NaN, where no test was possible, is no evidence.
    """
    _check_level(level)
    a, b = numbers(a, "a").astype(np.float64), numbers(b, "b").astype(np.float64)
    same_length(a, b, "a and b")
    if p < 0 or p > 1:
        raise ValueError(f"p must be in [0, 1], or NaN where there was no test, not {p}")
    gain = (a - b).mean()
    if not p < level or gain == 0:
        return "no evidence"
    return "better" if (gain > 0) == higher_is_better else "worse"
