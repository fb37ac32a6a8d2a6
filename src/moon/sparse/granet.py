"""GraNet (Liu et al. 2021): prune gradually from half the weights, and regrow some by gradient each time."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class GraNet(Gradual):
    """GraNet: prune to n(t), then replace a fraction of the weights of smallest |w| by those of largest |dL/dw|.

    n(t) = n_end + (n_begin - n_end) * (1 - t / t_last)^3; training begins at a sparsity of 0.5, or the final one if
    that is lower. `sparsity` is that at the end. A `pattern` is not supported.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, GraNet
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = GraNet(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700))
        >>> topology.density(), topology.planned
        (0.5, {'weight': 20})
    """

    begin_sparsity = 0.5

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return grad.abs()
