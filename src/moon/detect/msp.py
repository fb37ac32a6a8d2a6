"""MSP (Hendrycks and Gimpel 2017): the largest known probability."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Msp(Detector):
    """max_k p_k over the known classes.

    K+1 rule: the unknown output is in the softmax's normaliser but not in the maximum, so it lowers the score (the
    public code does the same).
    """

    def score(self, evidence: Evidence) -> Tensor:
        return evidence.confidence
