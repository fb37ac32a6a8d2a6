"""Outlier exposure (Hendrycks et al. 2019): learn a uniform prediction for images of no known class."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import logits_of
from moon.objectives.base import Draw, Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch
from moon.objectives.models import check_tensor


class OutlierExposure(Objective):
    """Outlier exposure: -log p_y at images, plus `weight` times -1/K * sum_k log p_k at outliers.

    The second term is the cross-entropy from the uniform distribution to the prediction. Images and outliers go through
    the model in one forward pass.

    Args:
        outliers: A function; `outliers(n)` returns n outliers and their classes, which are not used.
        weight: The weight of the second term.
        per_image: The number of outliers per image of the batch.

    Example:
        >>> import torch
        >>> from moon import OutlierExposure
        >>> model = torch.nn.Linear(8, 4)
        >>> def draw(n):
        ...     return torch.rand(n, 8), torch.zeros(n, dtype=torch.int64)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> terms = OutlierExposure(draw, per_image=1.0).terms(model, x, y, epoch=0)
        >>> list(terms)
        ['cross_entropy', 'undecided']
    """

    def __init__(self, outliers: Draw, weight: float = 0.5, per_image: float = 2.0) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 < per_image < inf):
            raise ValueError(f"weight={weight} must be at least 0, per_image={per_image} above 0, both finite")
        self.outliers, self.weight, self.per_image = outliers, weight, per_image

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        x = check_tensor(x, self)
        outliers, _ = self.outliers(max(1, round(self.per_image * len(x))))
        logits = at_least_float32(logits_of(model, torch.cat([x, outliers])))
        known, unknown = logits[: len(x)], logits[len(x) :]
        return {
            "cross_entropy": cross_entropy(known, y),
            "undecided": -self.weight * unknown.log_softmax(1).mean(),
        }
