"""KL-matching (Hendrycks et al. 2022): the negative divergence from the nearest class template."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from moon.detect.base import Detector
from moon.evidence import Evidence

_LEAST = 1e-37  # lower bound of a template's probabilities, close to the smallest normal float32 number


class Klm(Detector):
    """KL-matching: -min_k KL(p || d_k), with d_k the mean probabilities of validation inputs predicted as class k.

    KL(p || d) = sum p log p - sum p log d, so one matrix product serves all templates. A class that is never predicted
    has a one-hot template.

    K+1 rule: p is the softmax of the K known logits; the unknown output is not used. (With it, an input that moves
    towards the small unknown probability of a template would score higher.) If `released`, p and the classes include
    all K+1 outputs.

    Args:
        released: Use all outputs, as the public code does.

    Example:
        >>> import torch
        >>> from moon import Evidence, Klm
        >>> validation = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 4.0], [0.0, 3.0]])
        >>> klm = Klm().fit(Evidence(validation, torch.zeros(4, 8), num_known=2))
        >>> klm.score(Evidence(torch.tensor([[4.0, 0.0], [0.0, 0.0]]), torch.zeros(2, 8), num_known=2))
        tensor([-0.0041, -1.0336])
    """

    fits_on = "validation"
    can_be_scaled = True

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
