"""Label smoothing (Szegedy et al. 2016): cross-entropy with a share of the target spread over all classes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.base import Objective, Terms, widened


class LabelSmoothing(Objective):
    """-(1 - e) * log p_y - e / K * sum_k log p_k, mean over the batch."""

    def __init__(self, smoothing: float = 0.1) -> None:
        super().__init__()
        if not 0 <= smoothing <= 1:
            raise ValueError(f"smoothing must be in [0, 1], not {smoothing}")
        self.smoothing = smoothing

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        return {"smoothed_cross_entropy": cross_entropy(widened(model(x)), y, label_smoothing=self.smoothing)}
