"""Mahalanobis distance (Lee et al. 2018): minus the distance to the nearest class."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


def whitening(features: Tensor, means: Tensor) -> Tensor:
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
        self.whitening = whitening(features, self.means[labels])
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return -self.class_distances(evidence).amin(1).to(evidence.features)

    def class_distances(self, evidence: Evidence) -> Tensor:
        """(N, K): squared Mahalanobis distances."""
        white, means = self._fitted("whitening"), self._fitted("means")
        z, centres = evidence.features.to(white) @ white, means.to(white) @ white
        return torch.stack([(z - centre).square().sum(1) for centre in centres], 1)
