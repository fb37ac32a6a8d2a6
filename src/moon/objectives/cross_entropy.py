"""Cross-entropy: -log p_y, what every method is compared with."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.base import Objective, Terms, widened


class CrossEntropy(Objective):
    """-log p_y, mean over the batch."""

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        return {"cross_entropy": cross_entropy(widened(model(x)), y)}
