"""MOON (Lei et al. 2024): lean on wrongly predicted samples, and let the K+1-th output take part of the blame."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from moon.fast import fused
from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective, Terms, check_open, widened


@fused
def moon_loss(logits: Tensor, y: Tensor, w: float | Tensor) -> Tensor:
    """The unknown-aware loss, Eq. (1), mean over the batch; the unknown output is the last column of `logits`.

    L = -log p_y                                       where the arg-max of all K+1 outputs is y
    L = -(1 + w / (1 + w * p_{K+1})) * log p_y         elsewhere
    """
    if not y.is_cuda and bool((y >= logits.shape[1] - 1).any()):  # on a GPU this would wait for the device
        raise ValueError(f"label {int(y.max())} of {logits.shape[1]} outputs: the last output is the unknown, no label")
    log_p = widened(logits).log_softmax(1)
    nll, p_unknown = nll_loss(log_p, y, reduction="none"), log_p[:, -1].exp()
    w = (logits.argmax(1) != y).to(nll) * w  # 0 where the prediction is right
    # p_{K+1} is not detached: only the gradient through it can ever raise the unknown output.
    return (nll * (1 + w / (1 + w * p_unknown))).mean()


@fused
def _seen(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """p_{K+1} and the cross-entropy of each sample."""
    seen = widened(logits)
    return seen.softmax(1)[:, -1], cross_entropy(seen, y, reduction="none")


class Moon(Objective):
    """Eq. (1) with its weight from Algorithm 1, or with a constant one.

    `weight=AutoWeight(epochs)` is the paper's; a number is a constant w from the first step on, and 0 is plain
    cross-entropy over K+1 outputs (the ablation without the loss modification).
    """

    extra_logits, rates, vote_share = 1, "moon", 0.2
    parts: ClassVar = {"weight": AutoWeight}

    def __init__(self, weight: AutoWeight | float) -> None:
        super().__init__()
        if not isinstance(weight, AutoWeight) and not 0 <= weight < inf:
            raise ValueError(f"the weight w must be at least 0 and finite, not {weight}")
        self.weight = weight

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        check_open(model, self)
        logits = model(x)
        if isinstance(self.weight, AutoWeight) and self.has_come(epoch, self.weight.quiet_epochs) is not True:
            self.weight.observe(*_seen(logits.detach(), y), epoch)
        return {"unknown_aware": moon_loss(logits, y, self._w(epoch))}

    def phase(self, epoch: int) -> bool:
        return isinstance(self.weight, AutoWeight) and epoch >= self.weight.quiet_epochs

    def log(self, epoch: int) -> dict[str, float]:
        return {"w": float(self._w(epoch))}

    def _w(self, epoch: int | Tensor) -> float | Tensor:
        return self.weight(epoch) if isinstance(self.weight, AutoWeight) else self.weight
