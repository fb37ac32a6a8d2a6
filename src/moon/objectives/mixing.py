"""Blends of images: what Mixup and its kin share."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta
from torch.nn.functional import cross_entropy


def blended(x: Tensor, y: Tensor, concentration: float) -> tuple[Tensor, Tensor, Tensor]:
    """x blended with itself in another order, the labels of that order, and the share of the first, one a batch.

    The share is drawn from Beta(concentration, concentration). Nothing waits for the device.
    """
    shape = torch.full((), concentration, device=x.device)
    share = Beta(shape, shape, validate_args=False).sample().to(x.dtype)
    order = torch.randperm(len(x), device=x.device)
    return x.lerp(x[order], 1 - share), y[order], share


def blended_cross_entropy(logits: Tensor, y: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """-share * log p_y - (1 - share) * log p_other, mean over the batch."""
    return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, other)


def check_concentration(concentration: float) -> None:
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration must be above 0 and finite, not {concentration}")
