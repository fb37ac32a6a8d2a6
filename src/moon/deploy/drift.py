"""Notice when the inputs of a deployed network change, with a bounded probability of a false alarm."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from moon.arrays import Numbers, to_array

_JUMP = 0.01  # the share of the capital that is divided anew in each step
_BETS = np.array([-1.0, 0.0, 1.0])  # on low p-values, on none, on high ones


class DriftMonitor:
    """A test whether scores of new inputs still come from the distribution of the calibration scores.

    Each input gets a p-value among the calibration scores and all earlier inputs, with ties broken at random. While all
    of them are exchangeable, the p-values are independent and uniform, and the capital of a gambler who bets against
    this is a martingale that starts at 1 (a conformal test martingale; Vovk et al. 2003, "simple jumper"). Therefore
    the probability that it ever reaches 1 / false_alarm is at most `false_alarm`, however long one watches.

    The order of the inputs matters: known inputs that are sorted, for example by class, are not exchangeable and raise
    an alarm. Where the order says nothing, shuffle. A threshold is only as good as its calibration images: after an
    alarm, calibrate again.

    Args:
        known_scores: The detector's scores of known inputs that were not trained on.
        false_alarm: The probability that an alarm is ever raised although nothing has changed.
        seed: The seed of the random ties.

    Attributes:
        capital: The gambler's capital; the higher, the stronger the evidence of a change.
        alarm: Whether the capital has reached 1 / false_alarm.
        seen: The number of inputs so far.

    Raises:
        ValueError: If `false_alarm` is not above 0 and below 1.

    Example:
        >>> import numpy as np
        >>> from moon import DriftMonitor
        >>> rng = np.random.default_rng(0)
        >>> monitor = DriftMonitor(rng.normal(size=500), false_alarm=0.01)
        >>> monitor.update(rng.normal(size=200))  # nothing has changed
        False
        >>> monitor.update(rng.normal(-1, 1, size=200))  # lower scores: less known
        True
    """

    def __init__(self, known_scores: Numbers, false_alarm: float = 0.01, seed: int = 0) -> None:
        if not 0 < false_alarm < 1:
            raise ValueError(f"false_alarm must be a fraction between 0 and 1, not {false_alarm}")
        self.false_alarm = false_alarm
        self.alarm, self.seen = False, 0
        self._scores: list[float] = np.sort(to_array(known_scores, "known_scores").astype(np.float64)).tolist()
        self._ties = np.random.default_rng(seed)
        self._capitals = np.full(len(_BETS), 1 / len(_BETS))

    @property
    def capital(self) -> float:
        return float(self._capitals.sum())

    def update(self, scores: Numbers) -> bool:
        """Add the scores of new inputs, in the order in which they came.

        Args:
            scores: Scores of the detector.

        Returns:
            Whether an alarm has been raised so far.
        """
        for score in to_array(scores, "scores").astype(np.float64).tolist():
            p = self._p_value(score)
            total = self._capitals.sum()
            self._capitals = ((1 - _JUMP) * self._capitals + _JUMP * total / len(_BETS)) * (1 + _BETS * (p - 0.5))
            self.seen += 1
            self.alarm = self.alarm or self.capital >= 1 / self.false_alarm
        return self.alarm

    def _p_value(self, score: float) -> float:
        """The smoothed p-value of a score, which then joins the scores that later ones are compared with."""
        lower, upper = bisect_left(self._scores, score), bisect_right(self._scores, score)
        self._scores.insert(upper, score)
        return (lower + self._ties.random() * (upper - lower + 1)) / len(self._scores)
