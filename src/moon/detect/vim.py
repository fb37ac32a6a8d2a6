"""ViM (Wang et al. 2022): the energy less a virtual logit."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Vim(Detector):
    """log sum_k exp(f_k) - alpha |R^T (z - o)|: the energy less a virtual logit, the part of z outside the main space.

    o is where the classifier has no bias (W o = -b), R spans what the `dim` main directions of the training features
    leave out, and alpha makes the mean virtual logit equal the mean largest logit.

    K+1 rule: the K known logits and their rows of W; the unknown output plays no part.
    """

    fits_on = "train"
    grid: ClassVar = {"dim": (16, 32, 64, 128, 256, 512)}

    def __init__(self, dim: int | None = None) -> None:
        if dim is not None and dim < 1:
            raise ValueError(f"dim must be at least 1, not {dim}")
        self.dim = dim
        self.origin: Tensor | None = None
        self.residual: Tensor | None = None
        self.alpha: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        weight, bias = evidence.known_head
        size = evidence.features.shape[1]
        # The paper's rule: 1000 of 2048, 512 of 768 and more; half of smaller ones.
        dim = self.dim or (1000 if size >= 2048 else 512 if size >= 768 else size // 2)
        if dim >= size:
            raise ValueError(f"dim={dim} leaves nothing of {size} features; give a smaller dim")
        origin = -(torch.linalg.pinv(weight.double()) @ bias.double())
        z = evidence.features.double() - origin
        _, vectors = torch.linalg.eigh(z.T @ z / len(z))  # by rising variance
        residual = vectors[:, : size - dim]
        if (z @ residual).norm() < 1e-6 * z.norm():
            raise ValueError(
                f"the training features vary in {dim} directions at most; give more of them or a smaller dim"
            )
        alpha = evidence.known_logits.amax(1).double().mean() / (z @ residual).norm(dim=1).mean()
        self.origin, self.residual, self.alpha = origin.to(weight), residual.to(weight), alpha.to(weight)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        residual = self._fitted("residual")
        virtual = (evidence.features.to(residual) - self._fitted("origin")) @ residual
        return evidence.known_logits.logsumexp(1) - self._fitted("alpha") * virtual.norm(dim=1)
