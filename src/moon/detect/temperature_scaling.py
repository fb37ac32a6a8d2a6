"""Temperature scaling (Guo et al. 2017): a step on evidence, before any detector or calibration metric."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from moon.evidence import Evidence

_WIDEST = 100.0  # T stays in 1/100..100, also where the likelihood has no minimum


class TemperatureScaling:
    """logits / T, with T the minimiser of the negative log-likelihood of known labels on validation inputs.

    The likelihood is convex in 1 / T, so Newton's method with halved steps finds its one minimum.

    K+1 rule: all outputs are divided; the likelihood is over one softmax of all, as in training.
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature

    def fit(self, evidence: Evidence) -> Self:
        if evidence.labels is None:
            raise ValueError("TemperatureScaling needs the labels of the known inputs it is fitted on")
        logits, labels = evidence.logits.detach().double(), evidence.labels
        inverse = torch.ones((), dtype=torch.float64, device=logits.device)
        picked = logits.gather(1, labels[:, None]).squeeze(1)

        def loss(b: Tensor) -> Tensor:
            return cross_entropy(logits * b, labels)

        for _ in range(100):
            p = (logits * inverse).softmax(1)
            mean = (p * logits).sum(1)
            slope = (mean - picked).mean()
            curvature = ((p * logits.square()).sum(1) - mean.square()).mean().clamp(min=1e-12)
            step = slope / curvature
            # Never past the bounds, and shorter where a full step does not lower the loss.
            target = (inverse - step).clamp(1 / _WIDEST, _WIDEST)
            while loss(target) > loss(inverse) and (target - inverse).abs() > 1e-14:
                target = (target + inverse) / 2
            moved, inverse = (target - inverse).abs(), target
            if moved < 1e-12:
                break
        self.temperature = 1 / float(inverse)
        return self

    def __call__(self, evidence: Evidence) -> Evidence:
        """The evidence of the scaled model; its head is scaled alike."""
        t = self.temperature
        head = None if evidence.head is None else (evidence.head[0] / t, evidence.head[1] / t)
        return replace(evidence, logits=evidence.logits / t, head=head)
