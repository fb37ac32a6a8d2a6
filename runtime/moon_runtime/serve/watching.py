"""Has what clients send changed? A drift monitor whose memory is bounded."""

from __future__ import annotations

import numpy as np

from moon_runtime.drift import DriftMonitor

ROUND = 10_000  # images


class Watch:
    """Compares the scores of answered images with those of the calibration, in rounds of 10,000 images.

    A `DriftMonitor` keeps every score that it has seen. So that a server can run for ever, each round starts a new one:
    the probability of a false alarm is at most `false_alarm` for each round. An alarm lasts until a later round has
    ended without one.

    Args:
        calibration: The scores of the calibration images.
        false_alarm: The probability of a false alarm in a round.
        round_size: Images in a round.
    """

    def __init__(self, calibration: np.ndarray, false_alarm: float = 0.01, round_size: int = ROUND) -> None:
        self._calibration = calibration[np.isfinite(calibration)]
        self._false_alarm, self._round_size = false_alarm, round_size
        self._last_alarm, self._rounds, self.seen = False, 0, 0
        self._monitor = self._start()

    def _start(self) -> DriftMonitor | None:
        if not len(self._calibration):  # nothing to compare with
            return None
        return DriftMonitor(self._calibration, self._false_alarm, seed=self._rounds)

    @property
    def alarm(self) -> bool:
        """Whether the round so far, or the one before it, raised an alarm."""
        return self._last_alarm or (self._monitor is not None and self._monitor.alarm)

    @property
    def capital(self) -> float:
        """The evidence of a change in this round; an alarm is raised at 1 / false_alarm."""
        return 1.0 if self._monitor is None else self._monitor.capital

    def update(self, scores: np.ndarray) -> None:
        """Add scores, in the order in which the images came; those that are not finite say nothing."""
        rest = scores[np.isfinite(scores)]
        while len(rest) and self._monitor is not None:
            part, rest = np.split(rest, [self._round_size - self._monitor.seen])
            self._monitor.update(part)
            self.seen += len(part)
            if self._monitor.seen >= self._round_size:
                self._last_alarm, self._rounds = self._monitor.alarm, self._rounds + 1
                self._monitor = self._start()
