"""SHE (Zhang et al. 2023): the inner product with the stored pattern of the predicted class."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class She(Detector):
    """Inner product z . m_c of the features with the stored pattern of the predicted class c.

    The pattern of a class is the mean feature of its correctly predicted training inputs, or of all its training inputs
    if none is predicted correctly.

    K+1 rule: c is a known class; the unknown output is not used.

    Example:
        >>> import torch
        >>> from moon import Evidence, She
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> train = Evidence(logits=z, features=z, num_known=2, labels=torch.tensor([0, 0, 1, 1]))
        >>> new = torch.tensor([[4.0, 1.0], [1.0, 1.0]])
        >>> She().fit(train).score(Evidence(logits=new, features=new, num_known=2))
        tensor([14.5000,  4.0000])
    """

    fits_on = "train"

    def __init__(self) -> None:
        self.patterns: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        if evidence.labels is None:
            raise ValueError("She needs the labels of the known inputs it is fitted on")
        correct = evidence.prediction == evidence.labels
        patterns = []
        for k in range(evidence.num_known):
            members = evidence.labels == k
            if not members.any():
                raise ValueError(f"no known input of class {k} to fit She on")
            chosen = members & correct
            patterns.append(evidence.features[chosen if chosen.any() else members].mean(0))
        self.patterns = torch.stack(patterns)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        patterns = self._fitted("patterns")
        return (evidence.features.to(patterns) * patterns[evidence.prediction]).sum(1)
