"""CigL (Lei et al. 2023): each step sees the network without a random few of its weights; the last epochs vote."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moon.objectives.base import Objective, Terms, View
from moon.objectives.cross_entropy import CrossEntropy


class CigL(Objective):
    """The inner objective, cross-entropy unless another is given, each existing weight left out with chance `rate`.

    The weights themselves are never touched: the forward pass is given others, for one step. So nothing that looks at
    the model at any other time, a vote, an evaluation or a checkpoint, can meet a masked weight. A weight that was left
    out has no gradient in that step; one that does not exist keeps its own, by which it may grow.
    """

    rates, vote_share = "moon", 0.2  # a vote wants a rate that is held, not one that fades

    def __init__(self, rate: float = 0.01, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1), not {rate}")
        self.rate = rate
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        thinned = {
            name: weight.masked_fill((torch.rand_like(weight) < self.rate) & (weight != 0), 0.0)
            for name, weight in model.named_parameters()
            if weight.ndim > 1  # no bias, no norm
        }
        return self.inner.terms(View(model, lambda x: functional_call(model, thinned, x)), x, y, epoch=epoch)

    def log(self, epoch: int) -> dict[str, float]:
        return self.inner.log(epoch)
