"""RegMixup (Pinto et al. 2022): train on blends of two images in addition to the images, not instead of them."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import logits_of
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.mixing import blended, blended_cross_entropy, check_concentration
from moon.objectives.models import check_tensor


class RegMixup(Objective):
    """RegMixup: -log p_y at x, plus `weight` times the Mixup loss at share * x + (1 - share) * x'.

    Images and blends go through the model in one forward pass.

    Args:
        concentration: Both parameters of the Beta distribution that the share is drawn from.
        weight: The weight of the Mixup loss.

    Example:
        >>> import torch
        >>> from moon import RegMixup
        >>> model = torch.nn.Linear(8, 4)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> terms = RegMixup(concentration=20.0).terms(model, x, y, epoch=0)
        >>> list(terms)
        ['cross_entropy', 'blended']
    """

    def __init__(self, concentration: float = 20.0, weight: float = 1.0) -> None:
        super().__init__()
        check_concentration(concentration)
        if not 0 <= weight < inf:
            raise ValueError(f"weight must be at least 0 and finite, not {weight}")
        self.concentration, self.weight = concentration, weight

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        blend, other, share = blended(check_tensor(x, self), y, self.concentration)
        clean, mixed = at_least_float32(logits_of(model, torch.cat([x, blend]))).chunk(2)
        return {
            "cross_entropy": cross_entropy(clean, y),
            "blended": self.weight * blended_cross_entropy(mixed, y, other, share),
        }
