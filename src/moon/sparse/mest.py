"""MEST (Yuan et al. 2021): drop where weight and gradient are both small, grow at random."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class Mest(SparseTopology):
    """MEST: keep score |w| + 0.01 * |dL/dw|, so that a small weight with a large gradient may stay; random growth.

    Attributes:
        gradient_weight: The factor of the gradient in the keep score, 0.01.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, Mest
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = Mest(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700))
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> topology.step()  # instead of optimizer.step()
        >>> topology.density()
        0.1
    """

    gradient_weight = 0.01
    grows_at_random = True

    def keep_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return weight.abs() + self.gradient_weight * grad.abs()

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return self.random_scores(weight)
