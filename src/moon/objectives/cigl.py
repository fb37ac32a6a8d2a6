"""CigL (Lei et al. 2023): each step sets a few random weights to zero; the last epochs vote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from moon.evidence import Inputs, logits_of
from moon.objectives.base import Objective, Terms
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.epoch import Epoch
from moon.objectives.models import View


class CigL(Objective):
    """CigL: another objective, by default cross-entropy, with each non-zero weight dropped with probability `rate`.

    Dropping affects only the forward pass of a step, which uses copies of the weights. The vote, evaluation and
    checkpoints see the full network. A dropped weight has no gradient in that step. A weight that is already zero
    keeps its gradient, so that a topology can grow it.

    Args:
        rate: The probability that a weight is dropped, in [0, 1).
        inner: The objective to compute with the dropped weights; None for `CrossEntropy`.

    Example:
        >>> import torch
        >>> from moon import CigL
        >>> model = torch.nn.Linear(8, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> CigL(rate=0.01)(model, x, y, epoch=0).backward()
        >>> optimizer.step()
    """

    rates, vote_share = "moon", 0.2  # a vote needs a learning rate that is held, not one that decays to zero

    def __init__(self, rate: float = 0.01, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 <= rate < 1:
            raise ValueError(f"rate must be in [0, 1), not {rate}")
        self.rate = rate
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        thinned = {
            name: weight.masked_fill((torch.rand_like(weight) < self.rate) & (weight != 0), 0.0)
            for name, weight in model.named_parameters()
            if weight.ndim > 1  # no biases, no norms
        }

        def forward(x: Inputs) -> Any:
            args, kwargs = ((), dict(x)) if isinstance(x, Mapping) else (x, None)
            return functional_call(model, thinned, args, kwargs)

        return self.inner.terms(View(model, lambda x: logits_of(model, x, forward)), x, y, epoch=epoch)
