"""Entropy: minus the entropy of the known probabilities."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Entropy(Detector):
    """-H(p) = sum_k p_k log p_k.

    K+1 rule: p is the softmax of the K known logits; the unknown output plays no part (a model that is sure of the
    unknown has low entropy, and would look known).
    """

    def score(self, evidence: Evidence) -> Tensor:
        log_p = evidence.known_logits.log_softmax(1)
        return (log_p.exp() * log_p).sum(1)
