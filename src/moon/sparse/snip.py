"""SNIP (Lee et al. 2019): keep the weights whose removal would change the loss of the first batch most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moon.sparse.allocation import Allocation, Shapes, to_counts, uniform
from moon.sparse.pattern import UNSTRUCTURED
from moon.sparse.sparse_topology import SparseTopology


class Snip(SparseTopology):
    """SNIP: keep the weights of highest saliency |w * dL/dw| on the first batch, compared over all layers together.

    The network is dense until the first step, which chooses the masks; they never change after it. The saliency decides
    how many weights a layer keeps, at least one; `allocation` and `seed` are not used, and `schedule` must be None.
    With an n:m pattern, each layer keeps n of every m weights.

    Example:
        >>> import torch
        >>> from moon import Snip
        >>> model = torch.nn.Linear(20, 10)
        >>> topology = Snip(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> before = topology.density()
        >>> topology.step()  # instead of optimizer.step()
        >>> before, topology.density()
        (1.0, 0.1)
    """

    rewires = False

    def prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        self.frozen_after = 1
        if self.pattern is UNSTRUCTURED:
            self.planned = to_counts(uniform(shapes, self.sparsity), self.weights)  # until the saliency is known

    def count(self, name: str) -> int:
        return self.weights[name].numel() if self.steps == 0 else self.planned[name]

    @property
    def is_due(self) -> bool:
        return self.steps == 0

    def change(self) -> bool:
        if self.steps == 0:
            self._choose()
        return super().change()

    @torch.no_grad()
    def _choose(self) -> None:
        """Choose the masks by saliency."""
        new = self._best({name: (self.weights[name] * self._gradient(name)).abs() for name in self._pruned})
        self.planned |= {name: int(mask.sum()) for name, mask in new.items()}
        for name, mask in new.items():
            self._replace(name, mask, self.planned[name])

    def _budget(self, name: str) -> int:
        return sum(self.planned[other] for other in self.weights)  # all layers are compared together

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("SNIP never grows")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.steps:
            self.planned = dict(self.counts)
