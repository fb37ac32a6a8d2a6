"""GEN (Liu, Lochman and Zach 2023): the generalised entropy of the largest probabilities."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Gen(Detector):
    """Generalised entropy: -sum of p_k^gamma (1 - p_k)^gamma over the `top` largest p_k.

    K+1 rule: p is the softmax of the K known logits; the unknown output is not used.

    Args:
        gamma: The exponent, above 0.
        top: The number of largest probabilities to use, at least 1. All are used if there are fewer.

    Example:
        >>> import torch
        >>> from moon import Evidence, Gen
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> Gen(gamma=0.5).score(evidence)
        tensor([-0.2658, -0.8868])
    """

    depends_on_scale = True

    grid: ClassVar = {"gamma": (0.01, 0.1, 0.2, 0.5, 1.0), "top": (10, 50, 100)}

    def __init__(self, gamma: float = 0.1, top: int = 100) -> None:
        if gamma <= 0 or top < 1:
            raise ValueError(f"gamma={gamma} must be above 0 and top={top} at least 1")
        self.gamma, self.top = gamma, top

    def score(self, evidence: Evidence) -> Tensor:
        p = evidence.known_logits.softmax(1).sort(1, descending=True).values[:, : self.top]
        return -(p * (1 - p)).clamp(min=0).pow(self.gamma).sum(1)
