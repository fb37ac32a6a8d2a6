"""GradNorm (Huang, Geng and Li 2021): the norm of the gradient in the classifier's weight."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class GradNorm(Detector):
    """L1 norm of the gradient of KL(uniform || p) in the classifier's weight: |z|_1 * sum_k |p_k - 1/K|.

    The gradient is the outer product of p - 1/K and the features z, so its norm needs no backward pass.

    K+1 rule: p is the softmax of the K known logits; the unknown output is not used.

    Example:
        >>> import torch
        >>> from moon import Evidence, GradNorm
        >>> z = torch.tensor([[4.0, 0.0], [2.0, 2.0]])
        >>> GradNorm().score(Evidence(logits=z, features=z, num_known=2))
        tensor([3.8561, 0.0000])
    """

    can_be_scaled = True

    def score(self, evidence: Evidence) -> Tensor:
        p = evidence.known_logits.softmax(1)
        return evidence.features.abs().sum(1).to(p) * (p - 1 / evidence.num_known).abs().sum(1)
