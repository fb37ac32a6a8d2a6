"""MOON (Lei et al. 2024): raise the loss of wrongly predicted samples, less so where the unknown output is high."""

from __future__ import annotations

from math import inf
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy, nll_loss

from moon.fast import fused, observe_batch, unknown_aware_loss
from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch, epoch_number
from moon.objectives.models import open_logits


@fused(by=unknown_aware_loss)
def moon_loss(logits: Tensor, y: Tensor, w: float | Tensor) -> Tensor:
    """The unknown-aware loss, Eq. (1), averaged over the batch.

    L = -log p_y                                       where the arg-max of all K+1 outputs is y
    L = -(1 + w / (1 + w * p_{K+1})) * log p_y         elsewhere

    Args:
        logits: (N, K+1); the unknown output is the last column.
        y: (N,), classes, integers in [0, K).
        w: The weight, at least 0; 0 is the cross-entropy over K+1 outputs.

    Returns:
        The loss, a scalar.

    Raises:
        ValueError: If a label is the unknown output. On a GPU this is not checked.

    Example:
        >>> import torch
        >>> from moon import moon_loss
        >>> logits = torch.tensor([[1.0, 2.0, 1.0]]).log()  # p = 1/4, 1/2 | 1/4
        >>> loss = moon_loss(logits, torch.tensor([0]), w=2.0)  # wrong: class 1 is predicted
        >>> round(loss.item(), 4)  # (1 + 2 / 1.5) * log 4
        3.2347
    """
    if not y.is_cuda and bool((y >= logits.shape[1] - 1).any()):  # on a GPU this would wait for the device
        known = logits.shape[1] - 1
        raise ValueError(
            f"label {int(y.max())}, but with {known + 1} outputs labels are in [0, {known}); "
            "the last output is the unknown"
        )
    log_p = at_least_float32(logits).log_softmax(1)
    nll, p_unknown = nll_loss(log_p, y, reduction="none"), log_p[:, -1].exp()
    w = (logits.argmax(1) != y).to(nll) * w  # 0 where the prediction is right
    # p_{K+1} is not detached: only the gradient through it can raise the unknown output.
    return (nll * (1 + w / (1 + w * p_unknown))).mean()


@fused(by=observe_batch)
def _observation(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """p_{K+1} and the cross-entropy of each sample."""
    logits = at_least_float32(logits)
    return logits.softmax(1)[:, -1], cross_entropy(logits, y, reduction="none")


class Moon(Objective):
    """MOON: the unknown-aware loss, Eq. (1), with the weight w of Algorithm 1 or a constant one.

    L = -log p_y                                       where the arg-max of all K+1 outputs is y
    L = -(1 + w / (1 + w * p_{K+1})) * log p_y         elsewhere

    The model needs the unknown output: `model = open_head(model)`.

    Args:
        weight: `AutoWeight(epochs)` is the paper's. A number is a constant w from the first step on; 0 is the
            cross-entropy over K+1 outputs, which is the paper's ablation without the loss modification.

    Example:
        >>> import torch
        >>> from moon import AutoWeight, Moon, open_head
        >>> model = open_head(torch.nn.Linear(8, 4))
        >>> objective = Moon(AutoWeight(epochs=100))
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> objective(model, x, y, epoch=0).backward()
        >>> optimizer.step()
        >>> objective.log(99)
        {'w': 1.0}
    """

    extra_logits, rates, vote_share = 1, "moon", 0.2
    parts: ClassVar = {"weight": AutoWeight}

    def __init__(self, weight: AutoWeight | float) -> None:
        super().__init__()
        if not isinstance(weight, AutoWeight) and not 0 <= weight < inf:
            raise ValueError(f"the weight w must be at least 0 and finite, or an AutoWeight, not {weight}")
        self.weight = weight

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        return {"unknown_aware": self.loss(open_logits(model, x, self), y, epoch=epoch)}

    def loss(self, logits: Tensor, y: Tensor, *, epoch: Epoch) -> Tensor:
        """Compute the loss from logits, for loops that run the forward pass themselves.

        Call it for training batches only: in quiet epochs the weight w learns from each of them.

        Args:
            logits: (N, K+1); the unknown output is the last column.
            y: (N,), classes, integers in [0, K).
            epoch: The epoch, counted from 0.

        Returns:
            The loss, a scalar.

        Example:
            >>> import torch
            >>> from moon import AutoWeight, Moon
            >>> objective = Moon(AutoWeight(epochs=10, quiet_epochs=1))
            >>> loss = objective.loss(torch.zeros(2, 4), torch.tensor([0, 2]), epoch=0)
            >>> round(loss.item(), 4)  # log 4
            1.3863
        """
        if isinstance(self.weight, AutoWeight) and self.has_started(epoch, self.weight.quiet_epochs) is not True:
            self.weight.observe(*_observation(logits.detach(), y), epoch_number(epoch))
        return moon_loss(logits, y, self._w(epoch_number(epoch)))

    def phase(self, epoch: int) -> bool:
        return isinstance(self.weight, AutoWeight) and epoch >= self.weight.quiet_epochs

    def log(self, epoch: int) -> dict[str, float]:
        return {"w": float(self._w(epoch))}

    def _w(self, epoch: int | Tensor) -> float | Tensor:
        """w in this epoch."""
        return self.weight(epoch) if isinstance(self.weight, AutoWeight) else self.weight
