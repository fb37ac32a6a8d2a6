"""T2FNorm (Regmi et al. 2024): normalise the features in training but not at test time."""

from __future__ import annotations

from math import inf

from torch import Tensor, nn

from moon.evidence import Inputs, logits_of
from moon.objectives.base import Objective, Terms
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.epoch import Epoch
from moon.objectives.logitnorm import normalised
from moon.objectives.models import View, changed_features


class T2FNorm(Objective):
    """T2FNorm: another objective, by default cross-entropy, where the classifier gets the features h / (tau * |h|).

    Only training uses the normalisation; the model itself is unchanged, so that the norm of the features, which is
    smaller for unknown inputs, affects its logits.

    Args:
        tau: The normalised features have norm 1 / tau.
        inner: The objective to compute with the normalised features; None for `CrossEntropy`.

    Example:
        >>> import torch
        >>> from moon import T2FNorm
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> loss = T2FNorm(tau=0.5)(model, torch.tensor([[3.0, 4.0]]), torch.tensor([0]), epoch=0)
        >>> round(loss.item(), 4)  # cross-entropy of the logits 1.2 and 1.6
        0.913
    """

    normalises_logits = True

    def __init__(self, tau: float = 0.1, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 < tau < inf:
            raise ValueError(f"tau must be above 0 and finite, not {tau}")
        self.tau = tau
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        return self.inner.terms(self.view(model), x, y, epoch=epoch)

    def view(self, model: nn.Module) -> View:
        def forward(x: Inputs) -> Tensor:
            with changed_features(model, lambda features: normalised(features, self.tau)):
                return logits_of(model, x)

        return View(model, forward)
