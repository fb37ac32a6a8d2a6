"""RigL (Evci et al. 2020): drop the smallest weights, grow where the dense gradient is largest."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class RigL(SparseTopology):
    """RigL: every `delta_t` steps, replace the weights of smallest |w| by those of largest |dL/dw|.

    dL/dw is the gradient of the current batch with respect to all weights, zero or not.

    Args:
        model: The model. Its Linear, convolution and attention weights become sparse.
        optimizer: The optimizer of the model.
        sparsity: The fraction of weights that are zero, in [0, 1).
        schedule: When the masks change, such as `DropSchedule(t_end=int(0.7 * epochs * len(loader)))`.
        allocation: How the sparsity is divided among layers: `erk` or `uniform`.
        dense: Names of weights to leave dense, such as `["fc.weight"]`.
        seed: The seed of the first masks.
        pattern: Where in a layer the non-zero weights may be: anywhere, or `NOfM(2, 4)`.
        first_mask: "random", or "magnitude" to start with the largest weights, if they are pretrained.

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
