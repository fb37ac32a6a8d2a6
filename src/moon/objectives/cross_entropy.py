"""Cross-entropy: -log p_y, the baseline that every method is compared with."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import logits_of
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch


class CrossEntropy(Objective):
    """Cross-entropy, -log p_y, averaged over the batch.

    Example:
        >>> import torch
        >>> from moon import CrossEntropy
        >>> model = torch.nn.Linear(8, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> CrossEntropy()(model, x, y, epoch=0).backward()
        >>> optimizer.step()
    """

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        return {"cross_entropy": cross_entropy(at_least_float32(logits_of(model, x)), y)}
