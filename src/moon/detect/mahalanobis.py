"""The Mahalanobis distance to the nearest class (Lee et al. 2018), and the relative one (Ren et al. 2021)."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


def _gaussian(features: Tensor, means: Tensor) -> Tensor:
    """W with W W^T = inverse covariance of features - means, so that distances are |z W - mean W|^2.

    Directions without variance are left out, as the pseudo-inverse does. All in float64: small variances cost digits.
    """
    centred = features.double() - means.double()
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    real = values > values.amax() * len(values) * torch.finfo(torch.float64).eps
    return vectors * torch.where(real, values, 1.0).rsqrt() * real


class Mahalanobis(Detector):
    """-min_k (z - mu_k)^T S^-1 (z - mu_k), with class means and one covariance of the training features.

    K+1 rule: features only; the unknown output plays no part.
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.means: Tensor | None = None
        self.whitening: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        if evidence.labels is None:
            raise ValueError(f"{type(self).__name__} needs the labels of the known inputs it is fitted on")
        features, labels = evidence.features, evidence.labels
        if missing := set(range(evidence.num_known)) - set(labels.unique().tolist()):
            raise ValueError(f"no known input of class {sorted(missing)[0]} to fit {type(self).__name__} on")
        self.means = torch.stack([features[labels == k].mean(0) for k in range(evidence.num_known)])
        self.whitening = _gaussian(features, self.means[labels])
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return -self._class_distances(evidence).amin(1).to(evidence.features)

    def _class_distances(self, evidence: Evidence) -> Tensor:
        """(N, K): squared Mahalanobis distances."""
        whitening, means = self._fitted("whitening"), self._fitted("means")
        z, centres = evidence.features.to(whitening) @ whitening, means.to(whitening) @ whitening
        return torch.stack([(z - centre).square().sum(1) for centre in centres], 1)


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
        self.whitening_of_all = _gaussian(evidence.features, self.mean)
        return super().fit(evidence)

    def score(self, evidence: Evidence) -> Tensor:
        whitening = self._fitted("whitening_of_all")
        background = ((evidence.features.to(whitening) - self._fitted("mean")) @ whitening).square().sum(1)
        return (background - self._class_distances(evidence).amin(1)).to(evidence.features)
