"""fDBD (Liu and Qin 2024): the distance to the decision boundaries."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.moments import mean_features
from moon.evidence import Evidence


class Fdbd(Detector):
    """Distance to the decision boundaries: (mean over k != c of (f_c - f_k) / |w_c - w_k|) / |z - m|.

    c is the predicted class, and (f_c - f_k) / |w_c - w_k| is the distance of the features z from the boundary between
    c and k. m is the mean of the training features.

    K+1 rule: the boundaries between the K known classes are used, not the unknown output.

    Example:
        >>> import torch
        >>> from moon import Evidence, Fdbd
        >>> head = torch.eye(2), torch.zeros(2)  # weight and bias of the classifier: here logits = features
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> fdbd = Fdbd().fit(Evidence(z, z, num_known=2, head=head))
        >>> new = torch.tensor([[4.0, 1.0], [4.0, 4.0]])
        >>> fdbd.score(Evidence(new, new, num_known=2, head=head))
        tensor([0.9487, 0.0000])
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.mean: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.mean = mean_features(evidence.features)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        mean = self._fitted("mean")
        weight, _ = evidence.known_head
        between = torch.cdist(weight, weight)[evidence.prediction].to(evidence.logits)  # (N, K), 0 at c
        gap = evidence.known_logits.amax(1, keepdim=True) - evidence.known_logits
        distance = torch.where(between > 0, gap / between, 0.0).sum(1) / max(evidence.num_known - 1, 1)
        return distance / (evidence.features.to(mean) - mean).norm(dim=1).clamp(min=1e-12)
