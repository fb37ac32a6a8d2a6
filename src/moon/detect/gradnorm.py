"""GradNorm (Huang, Geng and Li 2021): the norm of the classifier's gradient towards uniform."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class GradNorm(Detector):
    """|z|_1 * sum_k |p_k - 1/K|: the L1 norm of the gradient of KL(uniform || p) in the classifier's weight.

    The gradient is the outer product of p - 1/K and z, so its norm needs no backward pass.

    K+1 rule: p is the softmax of the K known logits; the unknown output plays no part.
    """

    def score(self, evidence: Evidence) -> Tensor:
        p = evidence.known_logits.softmax(1)
        return evidence.features.abs().sum(1).to(p) * (p - 1 / evidence.num_known).abs().sum(1)
