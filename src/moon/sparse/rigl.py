"""RigL (Evci et al. 2020): drop the smallest weights, grow where the dense gradient is largest."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.topology import SparseTopology


class RigL(SparseTopology):
    """Grow score |dL/dw| of the dense gradient of the current batch."""

    dense_gradient = "rewiring"

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()
