"""Entropy: the negative entropy of the known probabilities."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Entropy(Detector):
    """Negative entropy: -H(p) = sum_k p_k log p_k.

    K+1 rule: p is the softmax of the K known logits; the unknown output is not used. (With it, a model that is
    confident in the unknown output would have low entropy, and the input would look known.)

    Example:
        >>> import torch
        >>> from moon import Evidence, Entropy
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> Entropy().score(evidence)
        tensor([-0.0901, -0.5822])
    """

    can_be_scaled = True

    def score(self, evidence: Evidence) -> Tensor:
        log_p = evidence.known_logits.log_softmax(1)
        return (log_p.exp() * log_p).sum(1)
