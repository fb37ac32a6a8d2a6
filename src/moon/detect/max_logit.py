"""Maximum logit (Hendrycks et al. 2022): the largest known logit, `mls` in OpenOOD."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class MaxLogit(Detector):
    """max_k f_k.

    K+1 rule: the maximum runs over the K known outputs. `released`: over all K+1.
    """

    def __init__(self, released: bool = False) -> None:
        self.released = released

    def score(self, evidence: Evidence) -> Tensor:
        return (evidence.logits if self.released else evidence.known_logits).amax(1)
