"""Static sparsity: random masks that never change, the baseline that every dynamic topology must beat."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class Static(SparseTopology):
    """Static sparsity: the initial random masks never change, so `schedule` must be None.

    Example:
        >>> import torch
        >>> from moon import Static
        >>> model = torch.nn.Linear(20, 10)
        >>> topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.9)
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> topology.step()  # instead of optimizer.step()
        >>> topology.density()
        0.1
    """

    rewires = False

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("a static topology never grows")
