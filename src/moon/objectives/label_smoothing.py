"""Label smoothing (Szegedy et al. 2016): cross-entropy with part of the target spread over all classes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.evidence import logits_of
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch


class LabelSmoothing(Objective):
    """Label smoothing: -(1 - e) * log p_y - e / K * sum_k log p_k, averaged over the batch.

    Args:
        smoothing: e, the part of the target that is spread over all classes, in [0, 1].

    Example:
        >>> import torch
        >>> from moon import LabelSmoothing
        >>> logits, y = torch.tensor([[0.8, 0.1, 0.1]]).log(), torch.tensor([0])
        >>> loss = LabelSmoothing(0.3)(torch.nn.Identity(), logits, y, epoch=0)
        >>> round(loss.item(), 4)  # -0.8 * log 0.8 - 0.2 * log 0.1
        0.639
    """

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing must be in [0, 1], not {smoothing}")
        self.smoothing = smoothing

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        return {
            "smoothed_cross_entropy": cross_entropy(
                at_least_float32(logits_of(model, x)), y, label_smoothing=self.smoothing
            )
        }
