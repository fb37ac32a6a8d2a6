"""LogitNorm (Wei et al. 2022): a loss over logits of constant length, so that it cannot fall by growing them."""

from __future__ import annotations

from math import inf

from torch import Tensor, nn

from moon.objectives.base import Objective, Terms, View, widened
from moon.objectives.cross_entropy import CrossEntropy


def normalised(logits: Tensor, temperature: float) -> Tensor:
    """z / (temperature * (|z| + 1e-7))."""
    logits = widened(logits)
    return logits / (temperature * (logits.norm(dim=1, keepdim=True) + 1e-7))


class LogitNorm(Objective):
    """The inner objective, cross-entropy unless another is given, over z / (temperature * |z|).

    In use the model is asked without the normalisation.
    """

    def __init__(self, temperature: float = 0.04, inner: Objective | None = None) -> None:
        super().__init__()
        if not 0 < temperature < inf:
            raise ValueError(f"temperature must be above 0 and finite, not {temperature}")
        self.temperature = temperature
        self.inner = inner or CrossEntropy()

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        view = View(model, lambda x: normalised(model(x), self.temperature))
        return self.inner.terms(view, x, y, epoch=epoch)

    def log(self, epoch: int) -> dict[str, float]:
        return self.inner.log(epoch)
