"""Notice when the inputs of a deployed network change, with a bounded probability of a false alarm."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np

_JUMP = 0.01  # the share of the capital that is divided anew in each step
_BETS = (-1.0, 0.0, 1.0)  # on low p-values, on none, on high ones


class DriftMonitor:
    """A test whether scores of new inputs still come from the distribution of the calibration scores.

    Each input gets a p-value among the calibration scores and all earlier inputs, with ties broken at random. While all
    of them are exchangeable, the p-values are independent and uniform, and the capital of a gambler who bets against
    this is a martingale that starts at 1 (a conformal test martingale; Vovk et al. 2003, "simple jumper"). Therefore
    the probability that it ever reaches 1 / false_alarm is at most `false_alarm`, however long one watches.

    All scores are kept, so memory and time per input grow with their number.

    Args:
        known_scores: The detector's scores of known inputs that were not trained on.
        false_alarm: The probability that an alarm is ever raised although nothing has changed.
        seed: The seed of the random ties.

    Raises:
        ValueError: If `false_alarm` is not above 0 and below 1, or scores are missing or not finite.

    Attributes:
        alarm: Whether the capital has reached 1 / false_alarm.
        seen: The number of inputs so far.
    """

    def __init__(self, known_scores: np.ndarray | Sequence[float], false_alarm: float = 0.01, seed: int = 0) -> None:
        if not 0 < false_alarm < 1:
            raise ValueError(f"false_alarm must be a fraction between 0 and 1, not {false_alarm}")
        self.false_alarm = false_alarm
        self.alarm, self.seen = False, 0
        self._scores: list[float] = sorted(_finite(known_scores, "known_scores"))
        self._ties = np.random.default_rng(seed)
        self._capitals = [1 / len(_BETS)] * len(_BETS)

    @property
    def capital(self) -> float:
        """The gambler's capital; the higher, the stronger the evidence of a change."""
        return sum(self._capitals)

    def update(self, scores: np.ndarray | Sequence[float]) -> bool:
        """Add the scores of new inputs, in the order in which they came.

        Args:
            scores: Scores of the detector.

        Returns:
            Whether an alarm has been raised so far.
        """
        for score in _finite(scores, "scores"):
            edge = self._p_value(score) - 0.5
            share = _JUMP * self.capital / len(_BETS)
            self._capitals = [
                ((1 - _JUMP) * own + share) * (1 + bet * edge) for own, bet in zip(self._capitals, _BETS, strict=True)
            ]
            self.seen += 1
            self.alarm = self.alarm or self.capital >= 1 / self.false_alarm
        return self.alarm

    def _p_value(self, score: float) -> float:
        """The smoothed p-value of a score, which then joins the scores that later ones are compared with."""
        lower, upper = bisect_left(self._scores, score), bisect_right(self._scores, score)
        self._scores.insert(upper, score)
        return (lower + self._ties.random() * (upper - lower + 1)) / len(self._scores)


def _finite(values: np.ndarray | Sequence[float], name: str) -> list[float]:
    array = np.asarray(values, np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite numbers, at least one, in one dimension")
    return array.tolist()
