"""Schedules: in which steps a sparse network is rewired, and what fraction of its weights is replaced."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from math import cos, pi

from moon.suggest import counted

FEW_CHANGES = 5  # below this many changes of the masks, a warning is logged

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DropSchedule:
    """RigL's schedule: every `delta_t` steps before `t_end`, a fraction of each layer's non-zero weights is replaced.

    The fraction is fraction / 2 * (1 + cos(pi * step / t_end)). All times are steps of the run, never epochs.

    A custom schedule is a subclass that overrides `is_due`, `share`, and `frozen_after` if its last change is not
    before `t_end`.

    Args:
        t_end: The step from which the masks no longer change; often 70% of the run.
        delta_t: The number of steps between two mask updates.
        fraction: The initial fraction of non-zero weights that is replaced, in [0, 1].

    Example:
        >>> from moon import DropSchedule
        >>> schedule = DropSchedule(t_end=1000, delta_t=100, fraction=0.3)
        >>> schedule.is_due(200), schedule.is_due(250), schedule.is_due(1000)
        (True, False, False)
        >>> round(schedule.share(500), 3)
        0.15
    """

    t_end: int
    delta_t: int = 100
    fraction: float = 0.3

    def __post_init__(self) -> None:
        if self.t_end < 0 or self.t_end != int(self.t_end):
            raise ValueError(
                f"t_end must be an integer number of steps, at least 0, not {self.t_end}; "
                "for 70% of a run use int(0.7 * epochs * len(loader))"
            )
        if self.delta_t < 1:
            raise ValueError(f"delta_t must be at least 1 step, not {self.delta_t}")
        if not 0 <= self.fraction <= 1:
            raise ValueError(f"fraction must be in [0, 1], not {self.fraction}")

    @property
    def frozen_after(self) -> int:
        """The number of steps after which the masks do not change."""
        return self.t_end

    def is_due(self, step: int) -> bool:
        """Whether the masks change in a step.

        Args:
            step: The step, counted from 0. The first step never changes them.

        Returns:
            True if they do.
        """
        return 0 < step < self.t_end and step % self.delta_t == 0

    def share(self, step: int) -> float:
        """The fraction of each layer's non-zero weights that is replaced if the masks change in a step.

        Args:
            step: The step, counted from 0.

        Returns:
            The fraction, in [0, 1].
        """
        if step >= self.t_end:
            return 0.0
        return self.fraction / 2 * (1 + cos(pi * step / self.t_end))

    @property
    def changes(self) -> int:
        """The number of steps in which the masks change."""
        return sum(self.is_due(step) for step in range(self.frozen_after))

    def turnover(self) -> float:
        """How many times the network may be replaced in the whole run.

        Returns:
            The sum of all shares.
        """
        return sum(self.share(step) for step in range(self.delta_t, self.t_end, self.delta_t))


def check_fraction(schedule: DropSchedule, name: str) -> None:
    """Raise a ValueError if a mask update would replace no weights, because the fraction is always 0."""
    due = (step for step in range(schedule.frozen_after) if schedule.is_due(step))
    first = next(due, None)
    if first is not None and not schedule.share(first) and not any(map(schedule.share, due)):
        raise ValueError(
            f"{name} would never replace a weight, because the fraction to replace (fraction, drop_fraction) is 0; "
            "use a larger one, or choose Static"
        )


def check_changes(schedule: DropSchedule, name: str, most: int | None = None) -> None:
    """Raise a ValueError if the masks would never change in a run; log a warning if they change only a few times.

    `most` is the number of non-zero weights of the largest sparse layer, of which a fraction is replaced; None if the
    masks also change in another way.
    """
    when, changes = f"delta_t={schedule.delta_t} and t_end={schedule.t_end}", schedule.changes
    advice = "train longer" if schedule.delta_t == 1 else "use a smaller delta_t (delta_t_steps) or train longer"
    if not changes:
        raise ValueError(f"{name} would never change its masks: with {when} no step is due; {advice}, or choose Static")
    if most is not None:
        check_fraction(schedule, name)
        share = max(schedule.share(step) for step in range(schedule.frozen_after) if schedule.is_due(step))
        if int(share * most) == 0:
            _log.warning(
                "%s will never replace a weight: the largest sparse layer keeps %s, of which a fraction of %.2g is "
                "less than one; use a larger fraction (drop_fraction) or a lower sparsity",
                *(name, counted(most, "weight"), share),
            )
    if changes < FEW_CHANGES:
        times = "once" if changes == 1 else f"{changes} times"
        _log.warning("%s changes its masks only %s, with %s; %s", name, times, when, advice)
