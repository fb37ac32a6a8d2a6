"""ASH (Djurisic et al. 2023): the energy with most features set to zero."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from moon.detect.shaping import Shaping, check_percentile, warn_if_narrow

_VARIANTS = ("b", "p", "s")


class Ash(Shaping):
    """Energy of features of which the smallest, `percentile` percent of them, are set to zero.

    Variant "p" keeps the remaining values, "b" sets each of them to an equal share of the sum of all features, and "s"
    multiplies them by exp(sum of all / sum of the remaining).

    K+1 rule: the K known logits are used, not the unknown output.

    Args:
        percentile: The percentage of features to set to zero, in [0, 100). At least one feature is kept.
        variant: "b", "p" or "s".

    Example:
        >>> import torch
        >>> from moon import Ash, Evidence
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 1.0], [1.0, 1.0]])
        >>> Ash(percentile=50, variant="p").score(Evidence(z, z, num_known=2, head=head))
        tensor([4.0181, 1.3133])
    """

    grid: ClassVar = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, percentile: float = 90.0, variant: str = "b") -> None:
        check_percentile(percentile)
        if variant not in _VARIANTS:
            raise ValueError(f"variant must be one of {_VARIANTS}, not {variant!r}")
        self.percentile, self.variant = percentile, variant

    def shape(self, features: Tensor) -> Tensor:
        warn_if_narrow(type(self), self.percentile, features.shape[1])
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
