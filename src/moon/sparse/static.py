"""Static sparsity: the random masks of the start are never changed. What every dynamic topology must beat."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.topology import SparseTopology


class Static(SparseTopology):
    """No schedule, so nothing ever grows."""

    rewires = False

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("a static topology never grows")
