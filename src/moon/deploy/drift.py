"""Detect changes of the inputs of a deployed network, with a bounded probability of a false alarm."""

from __future__ import annotations

from moon.arrays import Numbers, to_array
from moon.export.runtime import runtime


class DriftMonitor:
    """A test whether scores of new inputs still come from the distribution of the calibration scores.

    Each input gets a p-value among the calibration scores and all earlier inputs, with ties broken at random. While all
    of them are exchangeable, the p-values are independent and uniform, and the capital of a gambler who bets against
    this is a martingale that starts at 1 (a conformal test martingale; Vovk et al. 2003, "simple jumper"). Therefore
    the probability that it ever reaches 1 / false_alarm is at most `false_alarm`, however long one watches.

    The order of the inputs matters: known inputs that are sorted, for example by class, are not exchangeable and raise
    an alarm. Where the order says nothing, shuffle. A threshold is only as good as its calibration images: after an
    alarm, calibrate again.

    It is computed by `moon_runtime.DriftMonitor`, which servers and devices without `moon` use. This class takes
    tensors as well.

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
        MissingPackage: If moon-runtime is not installed.

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
        self._monitor = runtime().DriftMonitor(to_array(known_scores, "known_scores"), false_alarm, seed)

    @property
    def false_alarm(self) -> float:
        return self._monitor.false_alarm

    @property
    def capital(self) -> float:
        return self._monitor.capital

    @property
    def alarm(self) -> bool:
        return self._monitor.alarm

    @property
    def seen(self) -> int:
        return self._monitor.seen

    def update(self, scores: Numbers) -> bool:
        """Add the scores of new inputs, in the order in which they came.

        Args:
            scores: Scores of the detector.

        Returns:
            Whether an alarm has been raised so far.
        """
        return self._monitor.update(to_array(scores, "scores"))
