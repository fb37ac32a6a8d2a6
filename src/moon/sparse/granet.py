"""GraNet (Liu et al. 2021): prune gradually from half the weights, and regrow some by gradient each time."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class GraNet(Gradual):
    """At each change prune to n(t), then drop a share of the smallest |w| and grow as many of the largest |dL/dw|."""

    begin_sparsity = 0.5

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()
