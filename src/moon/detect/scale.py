"""SCALE (Xu et al. 2024): the energy of scaled features."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moon.detect.shaping import Shaping, check_percentile, warn_if_narrow


class Scale(Shaping):
    """Energy of features multiplied by exp(sum of all / sum of those above the `percentile`).

    Unlike in ASH, no feature is set to zero.

    K+1 rule: the K known logits are used, not the unknown output.

    Args:
        percentile: The percentage of features left out of the second sum, in [0, 100). At least one feature is in it.

    Example:
        >>> import torch
        >>> from moon import Evidence, Scale
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 1.0], [1.0, 1.0]])
        >>> Scale(percentile=50).score(Evidence(z, z, num_known=2, head=head))
        tensor([13.9614,  8.0822])
    """

    grid: ClassVar = {"percentile": (65.0, 70.0, 75.0, 80.0, 85.0, 90.0, 95.0)}

    def __init__(self, percentile: float = 85.0) -> None:
        check_percentile(percentile)
        self.percentile = percentile

    def shape(self, features: Tensor) -> Tensor:
        warn_if_narrow(type(self), self.percentile, features.shape[1])
        count = features.shape[1] - round(features.shape[1] * self.percentile / 100)
        top = features.topk(max(count, 1), dim=1).values.sum(1, keepdim=True).clamp(min=1e-12)
        return features * (features.sum(1, keepdim=True) / top).exp()
