"""Mixup (Zhang et al. 2018): train on blends of two images, with their labels blended in the same proportion."""

from __future__ import annotations

from torch import Tensor, nn

from moon.evidence import logits_of
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.mixing import blended, blended_cross_entropy, check_concentration
from moon.objectives.models import check_tensor


class Mixup(Objective):
    """Mixup: -share * log p_y - (1 - share) * log p_y' at share * x + (1 - share) * x', averaged over the batch.

    The share is drawn from Beta(a, a) once per batch; x' is the batch in a random order, and y' its labels.

    Args:
        concentration: a, both parameters of the Beta distribution.

    Example:
        >>> import torch
        >>> from moon import Mixup
        >>> model = torch.nn.Linear(8, 4)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> Mixup(concentration=0.2)(model, x, y, epoch=0).backward()
        >>> optimizer.step()
    """

    def __init__(self, concentration: float = 0.2) -> None:
        super().__init__()
        check_concentration(concentration)
        self.concentration = concentration

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        blend, other, share = blended(check_tensor(x, self), y, self.concentration)
        return {"blended": blended_cross_entropy(at_least_float32(logits_of(model, blend)), y, other, share)}
