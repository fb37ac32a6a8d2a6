"""Metrics of detection: how well scores separate known from unknown inputs.

Each metric takes the scores of the known and of the unknown inputs as two arrays, and higher scores mean more known, so
that the direction cannot be confused. Known is the positive class unless `positive="unknown"`.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moon.arrays import Numbers, to_array

Positive = Literal["known", "unknown"]


def _split(known_scores: Numbers, unknown_scores: Numbers, positive: Positive = "known") -> tuple[NDArray, NDArray]:
    """Return the scores of (positives, negatives), with the sign that makes positives score higher."""
    known, unknown = to_array(known_scores, "known_scores"), to_array(unknown_scores, "unknown_scores")
    dtype = np.result_type(known, unknown, np.float32)
    known, unknown = known.astype(dtype), unknown.astype(dtype)
    if positive == "known":
        return known, unknown
    if positive == "unknown":
        return -unknown, -known
    raise ValueError(f"positive must be 'known' or 'unknown', not {positive!r}")


def auroc(known_scores: Numbers, unknown_scores: Numbers) -> float:
    """Area under the ROC curve: the probability that a known input scores above an unknown one.

    Ties count half (the Mann-Whitney statistic).

    Args:
        known_scores: Scores of known inputs, one-dimensional.
        unknown_scores: Scores of unknown inputs, one-dimensional.

    Returns:
        A fraction in [0, 1]; 1 is best, 0.5 is chance level.

    Example:
        >>> from moon import auroc
        >>> auroc([0.9, 0.8, 0.4], [0.5, 0.1])
        0.8333333333333334
    """
    known, unknown = _split(known_scores, unknown_scores)
    unknown = np.sort(unknown)
    below = np.searchsorted(unknown, known, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(unknown, known, side="right").sum(dtype=np.int64)
    # Integers until the last division, so the result is exact up to one rounding.
    return (int(below) + int(not_above)) / (2 * len(known) * len(unknown))


def fpr_at_tpr(
    known_scores: Numbers, unknown_scores: Numbers, tpr: float = 0.95, positive: Positive = "known"
) -> float:
    """False positive rate at a true positive rate: FPR-95 by default.

    It is the share of negatives accepted at the strictest threshold that accepts `tpr` of the positives.

    Args:
        known_scores: Scores of known inputs, one-dimensional.
        unknown_scores: Scores of unknown inputs, one-dimensional.
        tpr: The true positive rate, in (0, 1].
        positive: "known" gives the FPR-95 of the paper and of OpenOOD v1: the share of unknown inputs accepted when
            95% of the known are. "unknown" gives that of OpenOOD v1.5: the share of known inputs rejected when 95% of
            the unknown are. The two are not comparable.

    Returns:
        A fraction in [0, 1]; 0 is best.

    Example:
        >>> from moon import fpr_at_tpr
        >>> fpr_at_tpr([0.9, 0.8, 0.4], [0.5, 0.1])
        0.5
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be in (0, 1], not {tpr}")
    positives, negatives = _split(known_scores, unknown_scores, positive)
    count = len(positives)
    # The smallest number of positives whose share is at least tpr; tpr * count may be rounded past an integer.
    accepted = next(k for k in range(max(1, math.ceil(tpr * count) - 1), count + 1) if k / count >= tpr)
    threshold = np.partition(positives, count - accepted)[count - accepted]
    return float(np.mean(negatives >= threshold))


def aupr(known_scores: Numbers, unknown_scores: Numbers, positive: Positive = "known") -> float:
    """Area under the precision-recall curve by the trapezoidal rule, as in OpenOOD.

    The trapezoidal rule is slightly optimistic, but the published tables use it.

    Args:
        known_scores: Scores of known inputs, one-dimensional.
        unknown_scores: Scores of unknown inputs, one-dimensional.
        positive: "known" gives AUPR-In, "unknown" gives AUPR-Out.

    Returns:
        A fraction in [0, 1]; 1 is best.

    Example:
        >>> from moon import aupr
        >>> round(aupr([0.9, 0.8, 0.4], [0.5, 0.1]), 4)
        0.9028
    """
    positives, negatives = _split(known_scores, unknown_scores, positive)
    scores = np.concatenate([positives, negatives])
    is_positive = np.concatenate([np.ones(len(positives), np.int64), np.zeros(len(negatives), np.int64)])
    order = np.argsort(-scores, kind="stable")
    scores, is_positive = scores[order], is_positive[order]
    last_of_tie = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    true_positives = np.cumsum(is_positive)[last_of_tie]
    recall = np.append(0.0, true_positives / len(positives))
    precision = np.append(1.0, true_positives / (last_of_tie + 1))
    return float(np.trapezoid(precision, recall))
