"""GMP (Zhu and Gupta 2018): start dense and prune the smallest weights, fast at first, then more slowly."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class Gmp(Gradual):
    """Gradual magnitude pruning: every `delta_t` steps the weights of smallest |w| are pruned; nothing grows.

    n(t) = n_end + (n - n_end) * (1 - t / t_last)^3 of the n weights of a layer remain. `sparsity` is that at the end.
    A `pattern` is not supported, and `seed` is not used.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, Gmp
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = Gmp(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700))
        >>> topology.density(), topology.planned
        (1.0, {'weight': 20})
    """

    def _rewire(self, share: float) -> None:
        super()._rewire(0.0)

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("gradual magnitude pruning never grows")
