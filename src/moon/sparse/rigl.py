"""RigL (Evci et al. 2020): drop the smallest weights, grow where the dense gradient is largest."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class RigL(SparseTopology):
    """RigL: every `delta_t` steps, replace the weights of smallest |w| by those of largest |dL/dw|.

    dL/dw is the gradient of the current batch with respect to all weights, zero or not.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, RigL
        >>> model = torch.nn.Sequential(torch.nn.Linear(20, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        >>> topology = RigL(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700, delta_t=100))
        >>> x, y = torch.randn(16, 20), torch.arange(16) % 10
        >>> optimizer.zero_grad()
        >>> torch.nn.functional.cross_entropy(model(x), y).backward()
        >>> topology.step()  # instead of optimizer.step()
        >>> round(topology.density(), 2)
        0.1
    """

    dense_gradient = "rewiring"

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()
