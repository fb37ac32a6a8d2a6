"""Relative Mahalanobis distance (Ren et al. 2021): the same, less the distance to all training features."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from moon.detect.mahalanobis import Mahalanobis, whitening
from moon.evidence import Evidence


class Rmds(Mahalanobis):
    """-min_k (d_k(z) - d_0(z)): the Mahalanobis distance to class k less that to all training features.

    K+1 rule: features only; the unknown output plays no part.
    """

    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor | None = None
        self.whitening_of_all: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.mean = evidence.features.mean(0)
        self.whitening_of_all = whitening(evidence.features, self.mean)
        return super().fit(evidence)

    def score(self, evidence: Evidence) -> Tensor:
        white = self._fitted("whitening_of_all")
        background = ((evidence.features.to(white) - self._fitted("mean")) @ white).square().sum(1)
        return (background - self.class_distances(evidence).amin(1)).to(evidence.features)
