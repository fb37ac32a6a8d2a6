"""NNGuide (Park, Jung and Teoh 2023): the energy times a guidance term from the nearest training features."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from moon.detect.base import Detector
from moon.detect.knn import nearest_rows
from moon.evidence import Evidence, mapped, taken


class NnGuide(Detector):
    """Guided energy: E(x) * mean over the k nearest training inputs i of z . z_i E(x_i).

    Features have length 1 and E is log sum_k exp(f_k). The bank of training inputs is a random `share` of them, but at
    least k. The choice is the same at every fit.

    K+1 rule: the energy of the K known logits is used, not the unknown output.

    Args:
        k: The number of neighbours, at least 1. `fit` needs at least `k` inputs.
        share: The share of training inputs in the bank, in (0, 1].

    Example:
        >>> import torch
        >>> from moon import Evidence, NnGuide
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> guide = NnGuide(k=2, share=1.0).fit(Evidence(logits=z, features=z, num_known=2))
        >>> new = torch.tensor([[4.0, 1.0], [1.0, 1.0]])
        >>> guide.score(Evidence(logits=new, features=new, num_known=2))
        tensor([14.2022,  4.8107])
    """

    depends_on_scale = True
    fits_on = "train"
    grid: ClassVar = {"k": (10, 100), "share": (0.01, 0.1, 1.0)}

    def __init__(self, k: int = 100, share: float = 0.01) -> None:
        if k < 1 or not 0 < share <= 1:
            raise ValueError(f"k={k} must be at least 1 and share={share} in (0, 1]")
        self.k, self.share = k, share
        self.bank: Tensor | None = None  # (n, D): z_i
        self.energy: Tensor | None = None  # (n, 1): E(x_i)

    def fit(self, evidence: Evidence) -> Self:
        if len(evidence) < self.k:
            raise ValueError(f"{self.k} neighbours need {self.k} known features, found {len(evidence)}")
        count = max(self.k, round(self.share * len(evidence)))
        features, logits = evidence.features, evidence.logits
        if count == len(evidence):
            self.bank = evidence.unit_features  # shared with other detectors that are fitted on the same features
        else:
            order = torch.randperm(len(evidence), generator=torch.Generator().manual_seed(0))
            chosen = order[:count].to(features.device)
            self.bank, logits = normalize(taken(features, chosen)), taken(logits, chosen)
        energy = mapped(lambda logits: logits[:, : evidence.num_known].logsumexp(1), logits)
        self.energy = energy[:, None].to(features)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        bank, energy = self._fitted("bank"), self._fitted("energy")
        features = normalize(evidence.features).to(bank)
        nearest = [values.mean(1) for values, _ in nearest_rows(features, self.k, bank, energy)]
        return evidence.known_logits.logsumexp(1) * torch.cat(nearest)
