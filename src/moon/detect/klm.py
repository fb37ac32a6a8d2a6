"""KL-matching (Hendrycks et al. 2022): minus the divergence from the nearest class template."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from moon.detect.base import Detector
from moon.evidence import Evidence

_LEAST = 1e-37  # a template's probability: float32's least, in every precision


class Klm(Detector):
    """-min_k KL(p || d_k), d_k the mean probabilities of validation inputs predicted as class k.

    KL(p || d) = sum p log p - sum p log d, so all templates are one matrix product. A class that nothing was
    predicted as has a one-hot template.

    K+1 rule: p is the softmax of the K known logits; the unknown output plays no part. (With it in p, an input that
    moves towards the little unknown mass of a template would score higher.) `released`: all K+1 outputs, in p and as
    classes.
    """

    fits_on = "validation"

    def __init__(self, released: bool = False) -> None:
        self.released = released
        self.log_templates: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        p = self._log_probabilities(evidence).exp()
        member = one_hot(p.argmax(1), p.shape[1]).to(p)  # (N, classes)
        count = member.sum(0)[:, None]
        mean = (member.T @ p) / count.clamp(min=1)
        templates = torch.where(count > 0, mean, torch.eye(len(mean), dtype=p.dtype, device=p.device))
        self.log_templates = templates.clamp(min=_LEAST).log()
        return self

    def score(self, evidence: Evidence) -> Tensor:
        log_templates = self._fitted("log_templates")
        log_p = self._log_probabilities(evidence).to(log_templates)
        p = log_p.exp()
        return -((p * log_p).sum(1, keepdim=True) - p @ log_templates.T).amin(1)

    def _log_probabilities(self, evidence: Evidence) -> Tensor:
        return (evidence.logits if self.released else evidence.known_logits).log_softmax(1)
