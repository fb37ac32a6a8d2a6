"""Outlier exposure (Hendrycks et al. 2019): be undecided about images that are known to be of no known class."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.base import Draw, Objective, Terms, widened


class OutlierExposure(Objective):
    """-log p_y, plus `weight` times the cross-entropy from uniform to p at outliers, -1/K * sum_k log p_k.

    `outliers(n)` gives n of them; a step takes `per_image` for each image of the batch, all in one pass.
    """

    def __init__(self, outliers: Draw, weight: float = 0.5, per_image: float = 2.0) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 < per_image < inf):
            raise ValueError(f"weight={weight} must be at least 0, per_image={per_image} above 0, both finite")
        self.outliers, self.weight, self.per_image = outliers, weight, per_image

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        strange, _ = self.outliers(max(1, round(self.per_image * len(x))))
        logits = widened(model(torch.cat([x, strange])))
        known, unknown = logits[: len(x)], logits[len(x) :]
        return {
            "cross_entropy": cross_entropy(known, y),
            "undecided": -self.weight * unknown.log_softmax(1).mean(),
        }
