"""Learning rates over a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class CosineRate:
    """Half a cosine from `start` down to `end`, then constant for the last `hold` of the run.

    The plain recipe is 0.1 to 1e-6 without hold; MOON's is 0.12 to 0.008 with hold 0.2, where the weights that vote
    are taken.
    """

    start: float
    end: float
    hold: float = 0.0

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < 0 or not 0 <= self.hold < 1:
            raise ValueError(f"learning rates must be at least 0 and hold in [0, 1), not {self}")

    def __call__(self, progress: float) -> float:
        """The rate after this share of the run's steps."""
        progress = min(progress / (1 - self.hold), 1.0)
        return self.end + (self.start - self.end) / 2 * (1 + cos(pi * progress))
