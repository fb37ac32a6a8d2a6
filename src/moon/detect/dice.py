"""DICE (Sun and Li 2022): the energy computed with the weights that contribute most."""

from __future__ import annotations

from typing import ClassVar, Self

from torch import Tensor

from moon.detect.moments import mean_features
from moon.detect.shaping import Shaping, check_percentile, warn_if_narrow
from moon.evidence import Evidence


class Dice(Shaping):
    """Energy of (M * W) z + b, where M keeps the weights whose contribution W * E[z] is above its `percentile`.

    K+1 rule: the K known rows of W are used, not the unknown output.

    Args:
        percentile: The percentage of weights to set to zero, in [0, 100).

    Example:
        >>> import torch
        >>> from moon import Dice, Evidence
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> dice = Dice(percentile=50).fit(Evidence(z, z, num_known=2, head=head))
        >>> new = torch.tensor([[4.0, 0.0], [1.0, 1.0]])
        >>> dice.score(Evidence(new, new, num_known=2, head=head))
        tensor([4.0181, 1.6931])
    """

    fits_on = "train"
    grid: ClassVar = {"percentile": (10.0, 30.0, 50.0, 70.0, 90.0)}

    def __init__(self, percentile: float = 90.0) -> None:
        check_percentile(percentile)
        self.percentile = percentile
        self.mean: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.mean = mean_features(evidence.features)
        return self

    def shape(self, features: Tensor) -> Tensor:
        return features

    def classifier(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        warn_if_narrow(type(self), self.percentile, evidence.features.shape[1])
        weight, bias = evidence.known_head
        contribution = weight * self._fitted("mean").to(weight)
        kept = contribution.numel() - int(self.percentile * contribution.numel() / 100)
        least = contribution.flatten().topk(kept).values[-1]
        return weight.where(contribution >= least, 0.0), bias
