"""GMP (Zhu and Gupta 2018): begin dense and prune the smallest weights, fast at first, then slower."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class Gmp(Gradual):
    """Gradual magnitude pruning: every `delta_t` steps the smallest |w| go; nothing grows."""

    def _rewire(self, share: float) -> None:
        super()._rewire(0.0)

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("gradual magnitude pruning never grows")
