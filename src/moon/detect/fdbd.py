"""fDBD (Liu and Qin 2024): the distance to the decision boundaries."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Fdbd(Detector):
    """Mean over k != c of (f_c - f_k) / |w_c - w_k|, divided by |z - mean of the training features|.

    The quotient is the distance of the feature z from the boundary between the predicted class c and class k.

    K+1 rule: the boundaries between the K known classes; the unknown output plays no part.
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.mean: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.mean = evidence.features.mean(0)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        mean = self._fitted("mean")
        weight, _ = evidence.known_head
        between = torch.cdist(weight, weight)[evidence.prediction].to(evidence.logits)  # (N, K), 0 at c
        gap = evidence.known_logits.amax(1, keepdim=True) - evidence.known_logits
        distance = torch.where(between > 0, gap / between, 0.0).sum(1) / max(evidence.num_known - 1, 1)
        return distance / (evidence.features.to(mean) - mean).norm(dim=1).clamp(min=1e-12)
