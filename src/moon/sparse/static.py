"""Static sparsity: the random masks of the start are never changed. What every dynamic topology must beat."""

from __future__ import annotations

from collections.abc import Collection

from torch import Tensor, nn
from torch.optim import Optimizer

from moon.sparse.allocation import Allocation, erk
from moon.sparse.schedule import DropSchedule
from moon.sparse.topology import SparseTopology


class Static(SparseTopology):
    """A schedule that has ended before the first step."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float,
        schedule: DropSchedule | None = None,
        allocation: Allocation = erk,
        dense: Collection[str] = (),
        seed: int = 0,
    ) -> None:
        if schedule is not None and schedule.t_end:
            raise ValueError("Static never rewires; use RigL or SET with a schedule, or give none")
        super().__init__(model, optimizer, sparsity, DropSchedule(t_end=0), allocation, dense, seed)

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("a static topology never grows")
