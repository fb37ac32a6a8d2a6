"""SNFS (Dettmers and Zettlemoyer 2019): drop the smallest weights, grow where the gradient is large on average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moon.sparse.allocation import Allocation, Shapes
from moon.sparse.sparse_topology import SparseTopology


class Snfs(SparseTopology):
    """SNFS: grow score |m|, where m is a moving average of the dense gradient: m <- 0.9 * m + 0.1 * dL/dw in each step.

    The topology keeps m itself, because the optimizer's momentum buffer is zero outside the masks. The number of
    non-zero weights of a layer stays that of the allocation.

    Attributes:
        smoothing: The weight of a new gradient in the moving average, 0.1.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, Snfs
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = Snfs(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700))
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> topology.step()  # instead of optimizer.step()
        >>> topology.density()
        0.1
    """

    smoothing = 0.1
    dense_gradient = "always"

    def prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        sparse = (weight for name, weight in self.weights.items() if self.planned[name] < weight.numel())
        self._averages: dict[Tensor, Tensor] = {
            weight: torch.zeros_like(weight, requires_grad=False) for weight in sparse
        }

    @property
    def is_due(self) -> bool:
        return not self.is_frozen

    def change(self) -> bool:
        if not self.is_frozen:
            for name in self._pruned:
                self._averages[self.weights[name]].lerp_(self._gradient(name), self.smoothing)
        return super().change()

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return self._averages[weight].abs()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"averages": {name: self._averages[self.weights[name]] for name in self._pruned}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, average in state["averages"].items():
            self._averages[self.weights[name]].copy_(average)
