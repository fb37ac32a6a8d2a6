"""Mixup (Zhang et al. 2018): train on blends of two images with the blend of their labels."""

from __future__ import annotations

from torch import Tensor, nn

from moon.objectives.base import Objective, Terms, widened
from moon.objectives.mixing import blended, blended_cross_entropy, check_concentration


class Mixup(Objective):
    """-share * log p_y - (1 - share) * log p_y' at share * x + (1 - share) * x', share from Beta(a, a), one a batch."""

    def __init__(self, concentration: float = 0.2) -> None:
        super().__init__()
        check_concentration(concentration)
        self.concentration = concentration

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        blend, other, share = blended(x, y, self.concentration)
        return {"blended": blended_cross_entropy(widened(model(blend)), y, other, share)}
