"""Thresholds of a detector with a guarantee, from the scores of known images that were not trained on.

The guarantees hold for every detector and every distribution of scores, also with ties. They need calibration images
that are drawn like the known images of later use.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, floor, log

import numpy as np
from numpy.typing import NDArray

from moon.arrays import Numbers, to_array


@dataclass(frozen=True)
class Threshold:
    """A threshold on the scores of a detector: inputs with this score or a higher one are accepted as known.

    Args:
        value: The threshold.
        accept: The share of known inputs that is accepted, at least.
        confidence: With which probability over the calibration images this holds; None if it holds on average.
        images: The number of calibration images.

    Example:
        >>> from moon import find_threshold
        >>> threshold = find_threshold(range(100), accept=0.95)
        >>> threshold.accepts([3, 4, 5]).tolist()
        [False, True, True]
    """

    value: float
    accept: float
    confidence: float | None
    images: int

    def accepts(self, scores: Numbers) -> NDArray[np.bool_]:
        """Decide which inputs are known.

        Args:
            scores: Scores of the detector, higher means more known.

        Returns:
            True for the inputs that are accepted as known, False for "unknown".
        """
        return to_array(scores, "scores") >= self.value


def find_threshold(known_scores: Numbers, accept: float = 0.95, confidence: float | None = None) -> Threshold:
    """Find the highest threshold that accepts a given share of known inputs.

    Without `confidence`, a new known input is accepted with probability `accept` or more, on average over calibration
    sets (split conformal prediction, Vovk et al. 2005): the threshold is the k-th lowest of n scores with
    k = floor((1 - accept) (n + 1)).

    With `confidence`, the share of all known inputs that is accepted is at least `accept` with that probability over
    the calibration images (Wilks 1941): k is the largest number with P(Binomial(n, 1 - accept) < k) <= 1 - confidence.

    Args:
        known_scores: The detector's scores of n known inputs that were neither trained on nor used to fit the detector.
        accept: The share of known inputs to accept, above 0 and below 1.
        confidence: The confidence, above 0 and below 1, or None.

    Returns:
        The threshold.

    Raises:
        ValueError: If there are too few scores for this guarantee; the message says how many are needed.

    Example:
        >>> import numpy as np
        >>> from moon import find_threshold
        >>> scores = np.arange(1000)
        >>> find_threshold(scores, accept=0.95).value, find_threshold(scores, accept=0.95, confidence=0.99).value
        (49.0, 34.0)
    """
    from scipy.special import bdtr  # imported here, so that `import moon` stays light

    scores = np.sort(to_array(known_scores, "known_scores").astype(np.float64))
    count, needed = len(scores), images_needed(accept, confidence)
    if count < needed:
        how = f"accept={accept:g}" + ("" if confidence is None else f" with confidence={confidence:g}")
        raise ValueError(f"{count} known scores are too few for {how}; give at least {needed:,}")
    reject = 1 - Fraction(str(accept))  # exact, so that 0.1 * 10 is 1
    if confidence is None:
        rank = floor(reject * (count + 1))
    else:
        rank = int(np.searchsorted(bdtr(np.arange(count), count, float(reject)), 1 - confidence, side="right"))
    rank = max(rank, 1)  # rounding may give 0 where exactly enough images are needed
    return Threshold(float(scores[rank - 1]), accept, confidence, count)


def images_needed(accept: float = 0.95, confidence: float | None = None) -> int:
    """The smallest number of calibration images with which `find_threshold` can give a guarantee.

    Args:
        accept: As for `find_threshold`.
        confidence: As for `find_threshold`.

    Returns:
        The number of images.

    Raises:
        ValueError: If a share is not above 0 and below 1.

    Example:
        >>> from moon import images_needed
        >>> images_needed(0.95), images_needed(0.95, confidence=0.99)
        (19, 90)
    """
    for name, value in (("accept", accept), ("confidence", confidence)):
        if value is not None and not 0 < value < 1:
            raise ValueError(f"{name} must be a fraction between 0 and 1, not {value}")
    if confidence is None:
        return ceil(1 / (1 - Fraction(str(accept)))) - 1
    return ceil(log(1 - confidence) / log(accept))


def p_values(scores: Numbers, known_scores: Numbers) -> NDArray[np.float64]:
    """The p-value of "this input is known": (1 + number of calibration scores that are not higher) / (n + 1).

    For a known input the p-value is at most p with probability at most p. Rejecting inputs with a p-value of
    1 - accept or less is the same as `find_threshold(known_scores, accept)`.

    Args:
        scores: Scores of new inputs, higher means more known.
        known_scores: Scores of n known calibration inputs, as for `find_threshold`.

    Returns:
        One p-value per input, between 1 / (n + 1) and 1.

    Example:
        >>> from moon import p_values
        >>> p_values([0.5, 3.0, 9.0], known_scores=[1.0, 2.0, 3.0, 4.0]).tolist()
        [0.2, 0.8, 1.0]
    """
    scores = to_array(scores, "scores").astype(np.float64)
    known = np.sort(to_array(known_scores, "known_scores").astype(np.float64))
    return (1 + np.searchsorted(known, scores, side="right")) / (len(known) + 1)
