"""EBO, the free energy (Liu et al. 2020): log-sum-exp of the known logits."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Energy(Detector):
    """T * log sum_k exp(f_k / T).

    K+1 rule: the sum runs over the K known outputs. `released`: over all K+1, so a large unknown output makes an
    input look known.
    """

    grid: ClassVar = {"temperature": (1.0, 10.0, 100.0, 1000.0)}

    def __init__(self, temperature: float = 1.0, released: bool = False) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        self.temperature, self.released = temperature, released

    def score(self, evidence: Evidence) -> Tensor:
        logits = evidence.logits if self.released else evidence.known_logits
        return self.temperature * (logits / self.temperature).logsumexp(1)
