"""MEST (Yuan et al. 2021): drop where weight and gradient are both small, grow at random."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.topology import SparseTopology


class Mest(SparseTopology):
    """Keep score |w| + 0.01 * |dL/dw|: a small weight that is about to change may stay. Grow score uniform."""

    gradient_weight = 0.01

    def keep_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return weight.abs() + self.gradient_weight * grad.abs()

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return self._random(weight)
