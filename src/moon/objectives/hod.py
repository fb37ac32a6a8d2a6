"""HOD (Roy et al. 2022): outliers have classes too; the K+1-th output is their sum."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from moon.evidence import look
from moon.objectives.base import Draw, Objective, Terms, check_open, widened


class Hod(Objective):
    """-log p_class over known and outlier classes, plus `weight` times -log p of the coarse answer, known or outlier.

    p_{K+1} is the probability of all outlier classes together; q, a classifier of this objective's own on the same
    features, divides it among them: p_class = p_{K+1} * q_class for an outlier. Only p_{K+1} remains in use.
    """

    extra_logits = 1

    def __init__(
        self, outliers: Draw, outlier_classes: int, num_features: int, weight: float = 0.1, per_image: float = 1.0
    ) -> None:
        super().__init__()
        if not (0 <= weight < inf and 0 < per_image < inf):
            raise ValueError(f"weight={weight} must be at least 0, per_image={per_image} above 0, both finite")
        if outlier_classes < 1:
            raise ValueError(f"outliers have at least one class, not {outlier_classes}")
        self.outliers, self.weight, self.per_image = outliers, weight, per_image
        self.divide = nn.Linear(num_features, outlier_classes)

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        check_open(model, self)
        strange, kind = self.outliers(max(1, round(self.per_image * len(x))))
        if not kind.is_cuda and int(kind.max()) >= self.divide.out_features:  # on a GPU this would wait for the device
            raise ValueError(f"an outlier of class {int(kind.max())}, but outlier_classes={self.divide.out_features}")
        seen = look(model, torch.cat([x, strange]))
        log_p = widened(seen.logits).log_softmax(1)
        log_unknown, log_known = log_p[:, -1], log_p[:, :-1].logsumexp(1)
        fine = nll_loss(log_p, torch.cat([y, torch.full_like(kind, seen.num_known)]))  # -log p_y, -log p_{K+1}
        q = widened(self.divide(seen.features[len(x) :]))
        outlier_share = len(strange) / len(log_p)
        return {
            "classes": fine + outlier_share * cross_entropy(q, kind),
            "known_or_outlier": -self.weight * torch.cat([log_known[: len(x)], log_unknown[len(x) :]]).mean(),
        }
