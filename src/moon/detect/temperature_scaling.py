"""Temperature scaling (Guo et al. 2017): divides logits by a fitted temperature, before a detector or a metric."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from moon.evidence import Evidence, mapped

_WIDEST = 100.0  # T stays in s/100..100s, even where the likelihood has no minimum; s: standard deviation of the logits
_FLAT = 1e-12  # a curvature of the likelihood that is taken as none


class TemperatureScaling:
    """Temperature scaling: logits / T, with T the minimiser of the negative log-likelihood on validation inputs.

    The negative log-likelihood is convex in 1 / T, so Newton's method with step halving finds its only minimum.
    T is limited to [s/100, 100 s], where s is the standard deviation of all logits, so logits in another unit have the
    same probabilities. Where the likelihood has no minimum in this range, for example because all inputs are classified
    correctly, T is where the search ended, and `no_optimum` is True.

    K+1 rule: all outputs are divided by T; the likelihood uses one softmax over all outputs, as in training.

    Args:
        temperature: T, if it is known already. `fit` replaces it.

    Example:
        >>> import torch
        >>> from moon import Evidence, TemperatureScaling
        >>> f = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 0.0]])
        >>> validation = Evidence(f, torch.zeros(4, 8), num_known=2, labels=torch.tensor([0, 0, 1, 1]))
        >>> scaling = TemperatureScaling().fit(validation)
        >>> round(scaling.temperature, 3)
        2.729
        >>> scaling(validation).confidence
        tensor([0.8124, 0.7501, 0.8124, 0.7501])
    """

    def __init__(self, temperature: float = 1.0) -> None:
        self.temperature = temperature
        self.no_optimum = False

    def fit(self, evidence: Evidence) -> Self:
        """Find the temperature that minimises the negative log-likelihood of the labels.

        Args:
            evidence: Evidence of known inputs that were not trained on, with labels.

        Returns:
            The object itself; `temperature` and `no_optimum` are set.

        Raises:
            ValueError: If the evidence has no labels.
        """
        if evidence.labels is None:
            raise ValueError("TemperatureScaling needs the labels of the known inputs it is fitted on")
        logits, labels = evidence.logits.detach().double(), evidence.labels
        unit = float(logits.std(correction=0)) or 1.0
        logits = logits / unit
        inverse = torch.ones((), dtype=torch.float64, device=logits.device)
        picked = logits.gather(1, labels[:, None]).squeeze(1)

        def loss(b: Tensor) -> Tensor:
            return cross_entropy(logits * b, labels)

        for _ in range(100):
            p = (logits * inverse).softmax(1)
            mean = (p * logits).sum(1)
            gradient = (mean - picked).mean()
            curvature = ((p * logits.square()).sum(1) - mean.square()).mean().clamp(min=_FLAT)
            step = gradient / curvature
            # Stay within the bounds, and halve the step until it lowers the loss.
            target = (inverse - step).clamp(1 / _WIDEST, _WIDEST)
            while loss(target) > loss(inverse) and (target - inverse).abs() > 1e-14:
                target = (target + inverse) / 2
            moved, inverse = (target - inverse).abs(), target
            self.no_optimum = bool(curvature <= _FLAT) or not 1 / _WIDEST < inverse < _WIDEST
            if moved < 1e-12:
                break
        self.temperature = unit / float(inverse)
        return self

    def __call__(self, evidence: Evidence) -> Evidence:
        """Scale evidence.

        Args:
            evidence: Evidence of any inputs of the same model.

        Returns:
            The evidence with logits and head divided by the temperature.
        """
        t = self.temperature
        head = None if evidence.head is None else (evidence.head[0] / t, evidence.head[1] / t)
        return replace(evidence, logits=mapped(lambda logits: logits / t, evidence.logits), head=head)
