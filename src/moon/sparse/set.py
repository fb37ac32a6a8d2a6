"""SET (Mocanu et al. 2018): drop the smallest weights, grow at random.

Schedule and allocation are RigL's, so that the two differ in the grow score alone.
"""

from __future__ import annotations

from torch import Tensor

from moon.sparse.topology import SparseTopology


class SET(SparseTopology):
    """Grow score uniform in [0, 1)."""

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return self._random(weight)
