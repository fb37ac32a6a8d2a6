"""EBO, the free energy (Liu et al. 2020): log-sum-exp of the known logits."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Energy(Detector):
    """The negative free energy: T * log sum_k exp(f_k / T).

    K+1 rule: the sum is over the K known outputs. If `released`, it is over all K+1 outputs, and a large unknown output
    then makes an input look known.

    Args:
        temperature: T, above 0.
        released: Sum over all outputs, as the public code does.

    Example:
        >>> import torch
        >>> from moon import Evidence, Energy
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> Energy().score(evidence)
        tensor([4.0181, 1.3133])
    """

    depends_on_scale = True

    grid: ClassVar = {"temperature": (1.0, 10.0, 100.0, 1000.0)}

    def __init__(self, temperature: float = 1.0, released: bool = False) -> None:
        if temperature <= 0:
            raise ValueError(f"temperature must be above 0, not {temperature}")
        self.temperature, self.released = temperature, released

    def score(self, evidence: Evidence) -> Tensor:
        logits = evidence.logits if self.released else evidence.known_logits
        return self.temperature * (logits / self.temperature).logsumexp(1)
