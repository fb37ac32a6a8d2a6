"""Learning rates over a run."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class CosineRate:
    """Half a cosine from `start` down to `end`, then constant for the last `hold` of the run.

    The plain recipe is 0.1 to 1e-6 without hold; MOON's is 0.12 to 0.008 with hold 0.2, where the weights that vote
    are taken. With `cycles` the last part is so many triangles, from `end` up to `peak` and down again.
    """

    start: float
    end: float
    hold: float = 0.0
    cycles: int = 0
    peak: float = 0.0

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < 0 or not 0 <= self.hold < 1:
            raise ValueError(
                f"learning rates must be at least 0 and hold in [0, 1), not from {self.start:g} to {self.end:g} "
                f"with hold {self.hold:g}"
            )
        if self.cycles < 0 or (self.cycles and (self.peak < self.end or not self.hold)):
            raise ValueError(
                f"cycles need a peak of at least the end and a hold above 0, not {self.cycles} of them from "
                f"{self.end:g} to {self.peak:g} with hold {self.hold:g}"
            )

    def summary(self) -> str:
        """In one line."""
        text = f"cosine from {self.start:g} to {self.end:g}"
        if self.cycles:
            return f"{text}, the last {self.hold:.0%} in {self.cycles} cycles up to {self.peak:g}"
        return f"{text}, held for the last {self.hold:.0%}" if self.hold else text

    def __call__(self, progress: float) -> float:
        """The rate after this share of the run's steps."""
        if self.cycles and progress >= 1 - self.hold:
            through = (progress - 1 + self.hold) / self.hold * self.cycles % 1  # of a cycle
            return self.end + (self.peak - self.end) * (1 - abs(2 * through - 1))
        progress = min(progress / (1 - self.hold), 1.0)
        return self.end + (self.start - self.end) / 2 * (1 + cos(pi * progress))
