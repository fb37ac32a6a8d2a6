"""Learning-rate schedules."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class CosineRate:
    """Half a cosine from `start` down to `end`, then constant for the last part of the run.

    Plain training uses `CosineRate(0.1, 1e-6)`. MOON uses `CosineRate(0.12, 0.008, hold=0.2)`, and its votes are cast
    in the constant part.

    Args:
        start: The first learning rate.
        end: The last learning rate.
        hold: The fraction of the run, in [0, 1), at its end in which the rate is constant.
        cycles: If above 0, the last part is this number of triangles from `end` up to `peak` and back.
        peak: The highest rate of the triangles.
        warmup: The fraction of the run, in [0, 1), at its start in which the rate rises linearly from 0 to the cosine.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> from moon import CosineRate
        >>> rate = CosineRate(0.12, 0.008, hold=0.2)
        >>> [round(rate(progress), 3) for progress in (0.0, 0.4, 0.8, 1.0)]
        [0.12, 0.064, 0.008, 0.008]
    """

    start: float
    end: float
    hold: float = 0.0
    cycles: int = 0
    peak: float = 0.0
    warmup: float = 0.0

    def __post_init__(self) -> None:
        if self.start < 0 or self.end < 0 or not 0 <= self.hold < 1:
            raise ValueError(
                f"learning rates must be at least 0 and hold in [0, 1), not start={self.start:g}, end={self.end:g}, "
                f"hold={self.hold:g}"
            )
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup, a fraction of the run, must be in [0, 1), not {self.warmup:g}")
        if self.cycles < 0 or (self.cycles and (self.peak < self.end or not self.hold)):
            raise ValueError(
                f"cycles need a peak of at least end and a hold above 0, not cycles={self.cycles}, "
                f"peak={self.peak:g}, end={self.end:g}, hold={self.hold:g}"
            )

    def summary(self) -> str:
        """Describe the schedule in one line."""
        text = f"cosine from {self.start:g} to {self.end:g}"
        if self.warmup:
            text += f" after a warm-up in the first {self.warmup:.0%}"
        if self.cycles:
            return f"{text}, the last {self.hold:.0%} in {self.cycles} cycles up to {self.peak:g}"
        return f"{text}, held for the last {self.hold:.0%}" if self.hold else text

    def __call__(self, progress: float) -> float:
        """The learning rate of a step.

        Args:
            progress: The fraction of the steps of the run done so far, in [0, 1].

        Returns:
            The learning rate.
        """
        rise = min(progress / self.warmup, 1.0) if self.warmup else 1.0
        if self.cycles and progress >= 1 - self.hold:
            phase = (progress - 1 + self.hold) / self.hold * self.cycles % 1  # the fraction of a cycle done
            return rise * (self.end + (self.peak - self.end) * (1 - abs(2 * phase - 1)))
        progress = min(progress / (1 - self.hold), 1.0)
        return rise * (self.end + (self.start - self.end) / 2 * (1 + cos(pi * progress)))
