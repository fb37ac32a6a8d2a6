"""Mahalanobis distance (Lee et al. 2018): the negative distance to the nearest class."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.moments import class_means, second_moment
from moon.evidence import Evidence


def whitening(features: Tensor, means: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return W with W W^T = inverse covariance of features - means, so that distances are |z W - mean W|^2.

    `means` is (D,), or (K, D) for features with labels; W is (D, D), in float64, because small variances are sensitive
    to rounding. Directions without variance are left out, as in the pseudo-inverse.
    """
    values, vectors = torch.linalg.eigh(second_moment(features, means, labels))
    real = values > values.amax() * len(values) * torch.finfo(torch.float64).eps
    return vectors * torch.where(real, values, 1.0).rsqrt() * real


class Mahalanobis(Detector):
    """Negative Mahalanobis distance to the nearest class: -min_k (z - mu_k)^T S^-1 (z - mu_k).

    mu_k are the class means and S is the shared covariance of the training features.

    K+1 rule: only features are used, not the unknown output.

    Example:
        >>> import torch
        >>> from moon import Evidence, Mahalanobis
        >>> z = torch.tensor([[4.0, 0.0], [4.0, 2.0], [2.0, 1.0], [0.0, 4.0], [2.0, 4.0], [1.0, 2.0]])
        >>> train = Evidence(logits=z, features=z, num_known=2, labels=torch.tensor([0, 0, 0, 1, 1, 1]))
        >>> new = torch.tensor([[4.0, 1.0], [0.0, 0.0]])
        >>> Mahalanobis().fit(train).score(Evidence(logits=new, features=new, num_known=2))
        tensor([ -0.5714, -15.5714])
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.means: Tensor | None = None
        self.whitening: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        features, labels = evidence.features, self._labels(evidence, of_all_classes=True)
        self.means = class_means(features, labels, evidence.num_known)
        self.whitening = whitening(features, self.means, labels)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return -self.class_distances(evidence).amin(1).to(evidence.features)

    def class_distances(self, evidence: Evidence) -> Tensor:
        """Return the squared Mahalanobis distances to each class mean.

        Args:
            evidence: Evidence of N inputs.

        Returns:
            A float64 tensor of shape (N, K).
        """
        white, means = self._fitted("whitening"), self._fitted("means")
        z, centres = evidence.features.to(white) @ white, means.to(white) @ white
        return torch.stack([(z - centre).square().sum(1) for centre in centres], 1)
