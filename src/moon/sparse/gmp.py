"""GMP (Zhu and Gupta 2018): start dense and prune the smallest weights, fast at first, then more slowly."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class Gmp(Gradual):
    """Gradual magnitude pruning: every `delta_t` steps the weights of smallest |w| are pruned; nothing grows.

    n(t) = n_end + (n - n_end) * (1 - t / t_last)^3 of the n weights of a layer remain.

    Args:
        model: The model. Its Linear, convolution and attention weights become sparse.
        optimizer: The optimizer of the model.
        sparsity: The fraction of weights that are zero at the end, in [0, 1).
        schedule: When the masks change, such as `DropSchedule(t_end=int(0.7 * epochs * len(loader)))`.
        allocation: How the sparsity is divided among layers: `erk` or `uniform`.
        dense: Names of weights to leave dense, such as `["fc.weight"]`.
        seed: Not used; the method is deterministic.
        pattern: Not supported.
        first_mask: "random", or "magnitude" to start with the largest weights, if they are pretrained.

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
