"""KL-matching (Hendrycks et al. 2022)."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Klm(Detector):
    """-min_k KL(p || d_k), d_k the mean probabilities of validation inputs predicted as class k.

    KL(p || d) = sum p log p - sum p log d, so all templates are one matrix product. A class that nothing was
    predicted as has a one-hot template.

    K+1 rule: p has K+1 entries, the templates are those of the K known classes. `released`: K+1 templates, one for
    the unknown output too.
    """

    fits_on = "validation"

    def __init__(self, released: bool = False) -> None:
        self.released = released
        self.log_templates: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        p = evidence.logits.softmax(1)
        classes = p.shape[1] if self.released else evidence.num_known
        member = torch.nn.functional.one_hot(p[:, :classes].argmax(1), classes).to(p)  # (N, classes)
        count = member.sum(0)[:, None]
        mean = (member.T @ p) / count.clamp(min=1)
        templates = torch.where(count > 0, mean, torch.eye(classes, p.shape[1], dtype=p.dtype, device=p.device))
        self.log_templates = templates.clamp(min=torch.finfo(p.dtype).tiny).log()
        return self

    def score(self, evidence: Evidence) -> Tensor:
        log_templates = self._fitted("log_templates")
        log_p = evidence.logits.log_softmax(1).to(log_templates)
        p = log_p.exp()
        return -((p * log_p).sum(1, keepdim=True) - p @ log_templates.T).amin(1)
