"""GraNet (Liu et al. 2021): prune gradually from half the weights, and regrow some by gradient each time."""

from __future__ import annotations

from torch import Tensor

from moon.sparse.gradual import Gradual


class GraNet(Gradual):
    """GraNet: prune to n(t), then replace a fraction of the weights of smallest |w| by those of largest |dL/dw|.

    n(t) = n_end + (n_begin - n_end) * (1 - t / t_last)^3; training begins at a sparsity of 0.5, or the final one if
    that is lower.

    Args:
        model: The model. Its Linear, convolution and attention weights become sparse.
        optimizer: The optimizer of the model.
        sparsity: The fraction of weights that are zero at the end, in [0, 1).
        schedule: When the masks change, such as `DropSchedule(t_end=int(0.7 * epochs * len(loader)))`.
        allocation: How the sparsity is divided among layers: `erk` or `uniform`.
        dense: Names of weights to leave dense, such as `["fc.weight"]`.
        seed: The seed of the first masks.
        pattern: Not supported.
        first_mask: "random", or "magnitude" to start with the largest weights, if they are pretrained.

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
