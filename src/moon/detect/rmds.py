"""Relative Mahalanobis distance (Ren et al. 2021): the distance to the nearest class minus that to all features."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from moon.detect.mahalanobis import Mahalanobis, whitening
from moon.detect.moments import mean_features
from moon.evidence import Evidence


class Rmds(Mahalanobis):
    """Relative Mahalanobis distance: -min_k (d_k(z) - d_0(z)).

    d_k is the Mahalanobis distance to class k and d_0 the distance to the mean of all training features, with their own
    covariance.

    K+1 rule: only features are used, not the unknown output.

    Example:
        >>> import torch
        >>> from moon import Evidence, Rmds
        >>> z = torch.tensor([[4.0, 0.0], [4.0, 2.0], [2.0, 1.0], [0.0, 4.0], [2.0, 4.0], [1.0, 2.0]])
        >>> train = Evidence(logits=z, features=z, num_known=2, labels=torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> new = torch.tensor([[4.0, 1.0], [0.0, 0.0]])
        >>> Rmds().fit(train).score(Evidence(logits=new, features=new, num_known=2))
        tensor([ 1.0000, -3.5000])
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None
        self.whitening_of_all: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.mean = mean_features(evidence.features)
        self.whitening_of_all = whitening(evidence.features, self.mean)
        return super().fit(evidence)

    def score(self, evidence: Evidence) -> Tensor:
        white = self._fitted("whitening_of_all")
        background = ((evidence.features.to(white) - self._fitted("mean")) @ white).square().sum(1)
        return (background - self.class_distances(evidence).amin(1)).to(evidence.features)
