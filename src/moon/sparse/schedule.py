"""When the topology is rewired, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, pi


@dataclass(frozen=True)
class DropSchedule:
    """RigL's schedule: every `delta_t` steps before `t_end`, a share of each layer's weights is replaced.

    The share is fraction / 2 * (1 + cos(pi * step / t_end)). All times are global steps, never epochs.
    """

    t_end: int
    delta_t: int = 100
    fraction: float = 0.3

    def __post_init__(self) -> None:
        if self.t_end < 0 or self.t_end != int(self.t_end):
            raise ValueError(
                f"t_end must be a whole number of steps, at least 0, not {self.t_end}; "
                "for 70% of a run give int(0.7 * epochs * len(loader))"
            )
        if self.delta_t < 1:
            raise ValueError(f"delta_t must be at least 1 step, not {self.delta_t}")
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], not {self.fraction}")

    @property
    def frozen_after(self) -> int:
        """The step from which on the masks change no more."""
        return self.t_end

    def is_due(self, step: int) -> bool:
        """Whether the topology is rewired in this step (the first step is 0 and never rewires)."""
        return 0 < step < self.t_end and step % self.delta_t == 0

    def share(self, step: int) -> float:
        """The share of each layer's weights that is dropped if the topology is rewired in this step."""
        if step >= self.t_end:
            return 0.0
        return self.fraction / 2 * (1 + cos(pi * step / self.t_end))

    def turnover(self) -> float:
        """The sum of all shares: how many times over the network may be replaced in the whole run."""
        return sum(self.share(step) for step in range(self.delta_t, self.t_end, self.delta_t))
