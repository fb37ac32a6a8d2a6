"""RegMixup (Pinto et al. 2022): blends of two images in addition to the images, not in their place."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.base import Objective, Terms, widened
from moon.objectives.mixing import blended, blended_cross_entropy, check_concentration


class RegMixup(Objective):
    """-log p_y at x, plus `weight` times the blended cross-entropy at share * x + (1 - share) * x', in one pass."""

    def __init__(self, concentration: float = 20.0, weight: float = 1.0) -> None:
        super().__init__()
        check_concentration(concentration)
        if not 0 <= weight < inf:
            raise ValueError(f"weight must be at least 0 and finite, not {weight}")
        self.concentration, self.weight = concentration, weight

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        blend, other, share = blended(x, y, self.concentration)
        clean, mixed = widened(model(torch.cat([x, blend]))).chunk(2)
        return {
            "cross_entropy": cross_entropy(clean, y),
            "blended": self.weight * blended_cross_entropy(mixed, y, other, share),
        }
