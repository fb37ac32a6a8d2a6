"""Static sparsity: random masks that never change, the baseline that every dynamic topology must beat."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class Static(SparseTopology):
    """Static sparsity: the initial random masks never change.

    Args:
        model: The model. Its Linear, convolution and attention weights become sparse.
        optimizer: The optimizer of the model.
        sparsity: The fraction of weights that are zero, in [0, 1).
        schedule: Must be None.
        allocation: How the sparsity is divided among layers: `erk` or `uniform`.
        dense: Names of weights to leave dense, such as `["fc.weight"]`.
        seed: The seed of the masks.
        pattern: Where in a layer the non-zero weights may be: anywhere, or `NOfM(2, 4)`.
        first_mask: "random", or "magnitude" to start with the largest weights, if they are pretrained.

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
