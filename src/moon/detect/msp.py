"""MSP (Hendrycks and Gimpel 2017): the largest known probability."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Msp(Detector):
    """Maximum softmax probability: max_k p_k over the known classes.

    K+1 rule: the unknown output is part of the softmax's denominator but not of the maximum, so it lowers the score.
    The public code does the same.

    Example:
        >>> import torch
        >>> from moon import Evidence, Msp
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> Msp().score(evidence)
        tensor([0.9647, 0.1142])
    """

    def score(self, evidence: Evidence) -> Tensor:
        return evidence.confidence
