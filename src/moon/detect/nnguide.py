"""NNGuide (Park, Jung and Teoh 2023): the energy, guided by near training features."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from moon.detect.base import Detector
from moon.evidence import Evidence


class NnGuide(Detector):
    """E(x) * mean over the k nearest of z . z_i E(x_i): the energy, guided by training features weighted by theirs.

    Features have length 1, E is log sum_k exp(f_k), and the bank is a random `share` of the training inputs, but k of
    them at least; which ones is the same at every fit.

    K+1 rule: the energy of the K known logits; the unknown output plays no part.
    """

    fits_on = "train"
    grid: ClassVar = {"k": (10, 100), "share": (0.01, 0.1, 1.0)}

    def __init__(self, k: int = 100, share: float = 0.01) -> None:
        if k < 1 or not 0 < share <= 1:
            raise ValueError(f"k={k} must be at least 1 and share={share} in (0, 1]")
        self.k, self.share = k, share
        self.bank: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        if len(evidence) < self.k:
            raise ValueError(f"{self.k} neighbours need {self.k} known features, found {len(evidence)}")
        count = max(self.k, round(self.share * len(evidence)))
        order = torch.randperm(len(evidence), generator=torch.Generator().manual_seed(0))
        chosen = order[:count].to(evidence.features.device)
        energy = evidence.known_logits[chosen].logsumexp(1, keepdim=True)
        self.bank = normalize(evidence.features[chosen]) * energy.to(evidence.features)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        bank = self._fitted("bank")
        guidance = (normalize(evidence.features).to(bank) @ bank.T).topk(self.k, dim=1).values.mean(1)
        return evidence.known_logits.logsumexp(1) * guidance
