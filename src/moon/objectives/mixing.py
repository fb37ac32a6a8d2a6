"""Blends of two images, which Mixup and RegMixup train on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta
from torch.nn.functional import cross_entropy


def blended(x: Tensor, y: Tensor, concentration: float) -> tuple[Tensor, Tensor, Tensor]:
    """Blend each image of a batch with another one: share * x + (1 - share) * x', one share for the whole batch.

    The share is drawn from Beta(concentration, concentration), the partners are a random permutation of the batch. Both
    are drawn on the device of `x`, without synchronising with it. Returns the blends, the classes of the partners x',
    and the share, a scalar.
    """
    shape = torch.full((), concentration, device=x.device)
    share = Beta(shape, shape, validate_args=False).sample().to(x.dtype)
    order = torch.randperm(len(x), device=x.device)
    return x.lerp(x[order], 1 - share), y[order], share


def blended_cross_entropy(logits: Tensor, y: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """The cross-entropy of blends: -share * log p_y - (1 - share) * log p_other, averaged over the batch.

    The logits are (N, outputs); `y` are the classes of the first images, `other` those of their partners.
    """
    return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, other)


def check_concentration(concentration: float) -> None:
    """Raise a ValueError if the parameter of the Beta distribution is not positive and finite."""
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration must be above 0 and finite, not {concentration}")
