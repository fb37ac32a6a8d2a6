"""ASH (Djurisic et al. 2023): the energy with most features set to zero."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from moon.detect.shaping import Shaping, check_percentile

_VARIANTS = ("b", "p", "s")


class Ash(Shaping):
    """The energy of features of which the `percentile` smallest are set to zero.

    Of the rest, variant "p" keeps the values, "b" gives each the same share of the sum of all, "s" scales them by
    exp(sum of all / sum of the rest).

    K+1 rule: the K known logits; the unknown output plays no part.
    """

    grid: ClassVar = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, percentile: float = 90.0, variant: str = "b") -> None:
        check_percentile(percentile)
        if variant not in _VARIANTS:
            raise ValueError(f"variant must be one of {_VARIANTS}, not {variant!r}")
        self.percentile, self.variant = percentile, variant

    def shape(self, features: Tensor) -> Tensor:
        count = features.shape[1] - round(features.shape[1] * self.percentile / 100)
        top = features.topk(max(count, 1), dim=1)
        total = features.sum(1, keepdim=True)
        if self.variant == "b":
            values = (total / top.values.shape[1]).expand_as(top.values)
        elif self.variant == "s":
            values = top.values * (total / top.values.sum(1, keepdim=True).clamp(min=1e-12)).exp()
        else:
            values = top.values
        return torch.zeros_like(features).scatter(1, top.indices, values)
