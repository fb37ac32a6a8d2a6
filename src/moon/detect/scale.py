"""SCALE (Xu et al. 2024): the energy of scaled features."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moon.detect.shaping import Shaping, check_percentile


class Scale(Shaping):
    """The energy of features scaled by exp(sum of all / sum of those above the `percentile`); none is pruned.

    K+1 rule: the K known logits; the unknown output plays no part.
    """

    grid: ClassVar = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, percentile: float = 85.0) -> None:
        check_percentile(percentile)
        self.percentile = percentile

    def shape(self, features: Tensor) -> Tensor:
        count = features.shape[1] - round(features.shape[1] * self.percentile / 100)
        top = features.topk(max(count, 1), dim=1).values.sum(1, keepdim=True).clamp(min=1e-12)
        return features * (features.sum(1, keepdim=True) / top).exp()
