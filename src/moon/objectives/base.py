"""What a training step minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from torch import Tensor, nn


def widened(logits: Tensor) -> Tensor:
    """The logits in float32 at least, so that autocast does not reach the loss."""
    return logits.float() if logits.element_size() < 4 else logits


class Objective(nn.Module, ABC):
    """A loss that owns its forward pass; state that must survive a restart lives in buffers."""

    extra_logits: int = 0  # outputs it needs beyond the K known classes

    @abstractmethod
    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Tensor:
        """The loss of one batch, a scalar; `epoch` counts from 0."""

    @classmethod
    def for_run(cls, *, epochs: int) -> Self:
        """The objective of a run of so many epochs; a subclass adds its options as keywords."""
        return cls()

    def log(self, epoch: int) -> dict[str, float]:
        """Named values worth a column in the training log."""
        return {}
