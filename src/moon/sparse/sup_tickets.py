"""Sup-tickets (Yin et al. 2022): several sparse networks with different masks, averaged and pruned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moon.sparse.allocation import Allocation, Shapes
from moon.sparse.schedule import DropSchedule
from moon.sparse.sparse_topology import SparseTopology


@dataclass(frozen=True)
class TicketSchedule(DropSchedule):
    """RigL's schedule, then `tickets` cycles of `cycle` steps from step `first` on, each starting with a large change.

    All times are steps of the run. A ticket is the network at the end of a cycle.

    Args:
        t_end: The step at which RigL's schedule ends.
        delta_t: The number of steps between two mask updates before `t_end`.
        fraction: The initial fraction of non-zero weights that is replaced, in [0, 1].
        first: The step at which the first cycle starts, at least `t_end`.
        cycle: The number of steps of a cycle, at least 2.
        tickets: The number of cycles.
        explore: The fraction of non-zero weights that is replaced at the start of a cycle, in [0, 1].

    Example:
        >>> from moon import TicketSchedule
        >>> schedule = TicketSchedule(t_end=700, delta_t=100, first=900, cycle=50, tickets=2)
        >>> [step for step in range(1, 1000) if schedule.is_due(step)]
        [100, 200, 300, 400, 500, 600, 900, 950]
    """

    first: int = 0
    cycle: int = 1
    tickets: int = 3
    explore: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < self.t_end or self.cycle < 2 or self.tickets < 1 or not 0 <= self.explore <= 1:
            raise ValueError(
                f"first={self.first} must be at least t_end={self.t_end}, cycle={self.cycle} at least 2 steps, "
                f"tickets={self.tickets} at least 1 and explore={self.explore} in [0, 1]"
            )

    def begins_ticket(self, step: int) -> bool:
        """Whether a cycle starts in a step.

        Args:
            step: The step, counted from 0.

        Returns:
            True if it does.
        """
        return 0 < step >= self.first and (step - self.first) % self.cycle == 0 and step < self.end

    @property
    def end(self) -> int:
        """The step after the last cycle."""
        return self.first + self.tickets * self.cycle

    @property
    def frozen_after(self) -> int:
        return self.end - self.cycle + 1  # the last cycle has started

    def is_due(self, step: int) -> bool:
        return super().is_due(step) or self.begins_ticket(step)

    def share(self, step: int) -> float:
        return self.explore if self.begins_ticket(step) else super().share(step)

    def turnover(self) -> float:
        return super().turnover() + self.tickets * self.explore


class SupTickets(SparseTopology):
    """Sup-tickets: RigL's mask updates, then several tickets with different masks, which a vote averages.

    The average keeps the largest |w| over all layers together, as many as one ticket has. `schedule` must be a
    `TicketSchedule`, which determines when tickets start. The learning rate should follow its cycles.

    Example:
        >>> import torch
        >>> from moon import SupTickets, TicketSchedule
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> schedule = TicketSchedule(t_end=700, first=900, cycle=50, tickets=2)
        >>> topology = SupTickets(model, optimizer, sparsity=0.9, schedule=schedule)
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> topology.step()  # instead of optimizer.step(); at the end of each cycle: vote.cast(model)
        >>> topology.density()
        0.1
    """

    rates, vote_share = "tickets", 0.1
    superposes = True
    dense_gradient = "rewiring"

    def prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        if not isinstance(self.schedule, TicketSchedule):
            raise ValueError("SupTickets needs schedule=TicketSchedule(...), which determines when its tickets start")

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()

    @torch.no_grad()
    def superpose(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        masks = self._best({name: weights[name].abs() for name in self._pruned})
        for name, mask in masks.items():
            weights[name].masked_fill_(~mask, 0.0)
        return masks
