"""SHE (Zhang et al. 2023): the inner product with the stored pattern of the predicted class."""

from __future__ import annotations

from typing import Self

from torch import Tensor

from moon.detect.base import Detector
from moon.detect.moments import class_means
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
        labels = self._labels(evidence, of_all_classes=True)
        correct = evidence.prediction == labels
        has_correct = labels[correct].bincount(minlength=evidence.num_known) > 0
        chosen = labels.where(correct | ~has_correct[labels], -1)
        self.patterns = class_means(evidence.features, chosen, evidence.num_known)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        patterns = self._fitted("patterns")
        return (evidence.features.to(patterns) * patterns[evidence.prediction]).sum(1)
