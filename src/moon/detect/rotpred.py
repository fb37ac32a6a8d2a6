"""RotPred (Hendrycks et al. 2019): how far the prediction is from uniform, and how well rotations are recognised."""

from __future__ import annotations

from math import inf, log
from typing import ClassVar

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class RotPredScore(Detector):
    """RotPred: KL(uniform || p) - rotation_weight * mean over r = 0..3 of -log q_r(x turned by r quarter turns).

    p are the probabilities of the K known classes, q those of the rotation head. Run the model with
    `read(model, loader, rotate=True)`. In nats; the public code has bits, which ranks inputs in the same way.

    K+1 rule: the unknown output is not used; p is a softmax over the K known logits. In a softmax over all outputs it
    would lower every known probability, which KL(uniform || p) counts as evidence of a known input.

    Args:
        rotation_weight: The factor of the second term, at least 0.

    Example:
        >>> import torch
        >>> from moon import Evidence, RotPredScore
        >>> logits = torch.tensor([[4.0, 0.0], [0.0, 0.0]])
        >>> rotations = torch.stack([9 * torch.eye(4), torch.zeros(4, 4)])  # all recognised, and none
        >>> RotPredScore().score(Evidence(logits, torch.zeros(2, 8), num_known=2, rotations=rotations))
        tensor([ 1.3246, -1.3863])
    """

    grid: ClassVar = {"rotation_weight": (0.1, 0.3, 1.0, 3.0, 10.0)}
    depends_on_scale = True
    rotates = True

    def __init__(self, rotation_weight: float = 1.0) -> None:
        if not 0 <= rotation_weight < inf:
            raise ValueError(f"rotation_weight must be at least 0 and finite, not {rotation_weight}")
        self.rotation_weight = rotation_weight

    def score(self, evidence: Evidence) -> Tensor:
        if evidence.rotations is None:
            raise ValueError("RotPred needs evidence of rotated images: read(model, loader, rotate=True)")
        divergence = -evidence.known_logits.log_softmax(1).mean(1) - log(evidence.num_known)
        log_q = evidence.rotations.to(divergence).log_softmax(2).diagonal(dim1=1, dim2=2)  # of the right rotations
        return divergence + self.rotation_weight * log_q.mean(1)
