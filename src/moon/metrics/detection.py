"""How well scores tell known from unknown: two arrays of scores in, one fraction out.

Known is the positive class unless `positive="unknown"` is said, and higher scores mean more known, so neither
direction nor positive class can be confused.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from moon.metrics.checks import numbers

Positive = Literal["known", "unknown"]


def _scores(known_scores, unknown_scores, positive: Positive = "known") -> tuple[NDArray, NDArray]:
    """The scores of (positives, negatives), turned so that positives should score higher."""
    known, unknown = numbers(known_scores, "known_scores"), numbers(unknown_scores, "unknown_scores")
    dtype = np.result_type(known, unknown, np.float32)
    known, unknown = known.astype(dtype), unknown.astype(dtype)
    if positive == "known":
        return known, unknown
    if positive == "unknown":
        return -unknown, -known
    raise ValueError(f"positive must be 'known' or 'unknown', not {positive!r}")


def auroc(known_scores, unknown_scores) -> float:
    """The probability that a known input scores above an unknown one, ties counting half (Mann-Whitney)."""
    known, unknown = _scores(known_scores, unknown_scores)
    unknown = np.sort(unknown)
    below = np.searchsorted(unknown, known, side="left").sum(dtype=np.int64)
    not_above = np.searchsorted(unknown, known, side="right").sum(dtype=np.int64)
    # Whole numbers until the last division, so the result is exact to rounding.
    return (int(below) + int(not_above)) / (2 * len(known) * len(unknown))


def fpr_at_tpr(known_scores, unknown_scores, tpr: float = 0.95, positive: Positive = "known") -> float:
    """The share of negatives accepted at the strictest threshold that accepts `tpr` of the positives.

    `positive="known"` is the paper's and OpenOOD v1's FPR-95: the share of unknown inputs accepted when 95% of the
    known are. `positive="unknown"` is OpenOOD v1.5's: the share of known inputs rejected when 95% of the unknown
    are. The two are not comparable.
    """
    if not 0 < tpr <= 1:
        raise ValueError(f"tpr must be in (0, 1], not {tpr}")
    positives, negatives = _scores(known_scores, unknown_scores, positive)
    count = len(positives)
    # The fewest positives whose share is at least tpr; the product may have been rounded across a whole number.
    accepted = next(k for k in range(max(1, math.ceil(tpr * count) - 1), count + 1) if k / count >= tpr)
    threshold = np.partition(positives, count - accepted)[count - accepted]
    return float(np.mean(negatives >= threshold))


def aupr(known_scores, unknown_scores, positive: Positive = "known") -> float:
    """Area under the precision-recall curve by trapezoids, as OpenOOD has it.

    `positive="known"` is AUPR-In, `positive="unknown"` AUPR-Out. Trapezoids are slightly optimistic; they are what
    the published tables use.
    """
    positives, negatives = _scores(known_scores, unknown_scores, positive)
    scores = np.concatenate([positives, negatives])
    is_positive = np.concatenate([np.ones(len(positives), np.int64), np.zeros(len(negatives), np.int64)])
    order = np.argsort(-scores, kind="stable")
    scores, is_positive = scores[order], is_positive[order]
    last_of_tie = np.flatnonzero(np.append(scores[1:] != scores[:-1], True))
    true_positives = np.cumsum(is_positive)[last_of_tie]
    recall = np.append(0.0, true_positives / len(positives))
    precision = np.append(1.0, true_positives / (last_of_tie + 1))
    return float(np.trapezoid(precision, recall))
