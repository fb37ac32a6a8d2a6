"""Sup-tickets (Yin et al. 2022): several cheap networks with masks of their own, averaged and pruned again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from moon.sparse.allocation import Allocation, Shapes
from moon.sparse.schedule import DropSchedule
from moon.sparse.topology import SparseTopology


@dataclass(frozen=True)
class TicketSchedule(DropSchedule):
    """RigL's schedule, then `tickets` cycles of `cycle` steps from step `first` on, each begun by a large replacement.

    All times are global steps. A ticket is the network at the end of its cycle.
    """

    first: int = 0
    cycle: int = 1
    tickets: int = 3
    explore: float = 0.5  # the share of connections replaced at the beginning of a cycle

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first < self.t_end or self.cycle < 2 or self.tickets < 1 or not 0 <= self.explore <= 1:
            raise ValueError(
                f"first={self.first} must be at least t_end={self.t_end}, cycle={self.cycle} at least 2 steps, "
                f"tickets={self.tickets} at least 1 and explore={self.explore} in [0, 1]"
            )

    def begins_ticket(self, step: int) -> bool:
        return 0 < step >= self.first and (step - self.first) % self.cycle == 0 and step < self.end

    @property
    def end(self) -> int:
        return self.first + self.tickets * self.cycle

    @property
    def frozen_after(self) -> int:
        return self.end - self.cycle + 1  # the last ticket has begun

    def is_due(self, step: int) -> bool:
        return super().is_due(step) or self.begins_ticket(step)

    def share(self, step: int) -> float:
        return self.explore if self.begins_ticket(step) else super().share(step)

    def turnover(self) -> float:
        return super().turnover() + self.tickets * self.explore


class SupTickets(SparseTopology):
    """Grow score |dL/dw|. The tickets have different masks; a vote averages them and keeps the largest |w| of the
    average over all layers, as many as a ticket has."""

    rates, vote_share = "tickets", 0.1
    superposes = True
    dense_gradient = "rewiring"

    def _prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        if not isinstance(self.schedule, TicketSchedule):
            raise ValueError("SupTickets needs schedule=TicketSchedule(...), which says when its tickets begin")

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()

    @torch.no_grad()
    def superpose(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        masks = self._best({name: weights[name].abs() for name in self._pruned})
        for name, mask in masks.items():
            weights[name].masked_fill_(~mask, 0.0)
        return masks
