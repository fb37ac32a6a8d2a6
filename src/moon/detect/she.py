"""SHE (Zhang et al. 2023): the inner product with the predicted class's pattern."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class She(Detector):
    """z . m_c: the inner product with the stored pattern of the predicted class c.

    A class's pattern is the mean feature of the training inputs rightly predicted as it; of all of its inputs where
    none was.

    K+1 rule: c is a known class; the unknown output plays no part.
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.patterns: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        if evidence.labels is None:
            raise ValueError("She needs the labels of the known inputs it is fitted on")
        right = evidence.prediction == evidence.labels
        patterns = []
        for k in range(evidence.num_known):
            members = evidence.labels == k
            if not members.any():
                raise ValueError(f"no known input of class {k} to fit She on")
            chosen = members & right
            patterns.append(evidence.features[chosen if chosen.any() else members].mean(0))
        self.patterns = torch.stack(patterns)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        patterns = self._fitted("patterns")
        return (evidence.features.to(patterns) * patterns[evidence.prediction]).sum(1)
