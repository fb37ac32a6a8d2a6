"""Detectors that change the features and ask the classifier again: the energy of W z' + b."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Shaping(Detector):
    """log sum_k exp(f_k) of the known logits f of changed features.

    The features that reach the classifier are in the evidence, and so is the classifier, so no further forward pass and
    no hook on the model is needed.
    """

    @abstractmethod
    def shape(self, features: Tensor) -> Tensor:
        """The features to ask the classifier about."""

    def classifier(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """Weight and bias of the known classes; DICE changes them."""
        return evidence.known_head

    def score(self, evidence: Evidence) -> Tensor:
        weight, bias = self.classifier(evidence)
        logits = self.shape(evidence.features) @ weight.T + bias
        return logits.to(evidence.logits.dtype).logsumexp(1)


def check_percentile(percentile: float) -> None:
    if not 0 <= percentile < 100:
        raise ValueError(f"percentile must be in [0, 100), not {percentile}")
