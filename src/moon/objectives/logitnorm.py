"""LogitNorm (Wei et al. 2022): a loss over logits of constant norm, so that larger logits cannot reduce it."""

from __future__ import annotations

from math import inf

from torch import Tensor, nn

from moon.evidence import logits_of
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.epoch import Epoch
from moon.objectives.models import View


def normalised(logits: Tensor, temperature: float) -> Tensor:
    """Normalise logits (N, outputs) to norm 1 / temperature: z / (temperature * (|z| + 1e-7)), in float32 or wider."""
    logits = at_least_float32(logits)
    return logits / (temperature * (logits.norm(dim=1, keepdim=True) + 1e-7))


class LogitNorm(Objective):
    """LogitNorm: another objective, by default cross-entropy, over the logits z / (temperature * |z|).

    Only training uses the normalisation; the model itself is unchanged.

    Args:
        temperature: The normalised logits have norm 1 / temperature.
        inner: The objective to compute from the normalised logits; None for `CrossEntropy`.

    Example:
        >>> import torch
        >>> from moon import LogitNorm
        >>> logits, y = torch.tensor([[3.0, 4.0]]), torch.tensor([0])
        >>> loss = LogitNorm(temperature=0.5)(torch.nn.Identity(), logits, y, epoch=0)
        >>> round(loss.item(), 4)  # cross-entropy of the logits 1.2 and 1.6
        0.913
    """

    normalises_logits = True

    def __init__(self, temperature: float = 0.04, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 < temperature < inf:
            raise ValueError(f"temperature must be above 0 and finite, not {temperature}")
        self.temperature = temperature
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        return self.inner.terms(self.view(model), x, y, epoch=epoch)

    def view(self, model: nn.Module) -> View:
        return View(model, lambda x: normalised(logits_of(model, x), self.temperature))
