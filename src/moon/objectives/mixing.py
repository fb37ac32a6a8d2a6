"""Blends of two images, which Mixup and RegMixup train on."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributions import Beta
from torch.nn.functional import cross_entropy


def blended(x: Tensor, y: Tensor, concentration: float) -> tuple[Tensor, Tensor, Tensor]:
    """Blend each image of a batch with another one: share * x + (1 - share) * x', one share for the whole batch.

    The share is drawn from Beta(concentration, concentration), the partners are a random permutation of the batch. Both
    are drawn on the device of `x`, without synchronising with it.

    Args:
        x: The images of the batch.
        y: Their classes.
        concentration: Both parameters of the Beta distribution.

    Returns:
        The blends, the classes of the partners x', and the share, a scalar.

    Example:
        >>> import torch
        >>> from moon.objectives.mixing import blended
        >>> x, y = torch.eye(4), torch.arange(4)
        >>> blend, other, share = blended(x, y, concentration=0.2)
        >>> torch.allclose(blend, share * x + (1 - share) * x[other])
        True
    """
    shape = torch.full((), concentration, device=x.device)
    share = Beta(shape, shape, validate_args=False).sample().to(x.dtype)
    order = torch.randperm(len(x), device=x.device)
    return x.lerp(x[order], 1 - share), y[order], share


def blended_cross_entropy(logits: Tensor, y: Tensor, other: Tensor, share: Tensor) -> Tensor:
    """The cross-entropy of blends: -share * log p_y - (1 - share) * log p_other, averaged over the batch.

    Args:
        logits: (N, outputs), the logits of the blends.
        y: (N,), the classes of the first images.
        other: (N,), the classes of their partners.
        share: The share of the first images, a scalar.

    Returns:
        The loss, a scalar.

    Example:
        >>> import torch
        >>> from moon.objectives.mixing import blended_cross_entropy
        >>> logits = torch.tensor([[0.5, 0.25, 0.25]]).log()
        >>> loss = blended_cross_entropy(logits, torch.tensor([0]), torch.tensor([1]), torch.tensor(0.5))
        >>> round(loss.item(), 4)  # (log 2 + log 4) / 2
        1.0397
    """
    return share * cross_entropy(logits, y) + (1 - share) * cross_entropy(logits, other)


def check_concentration(concentration: float) -> None:
    """Check the parameter of the Beta distribution.

    Args:
        concentration: The value to check.

    Raises:
        ValueError: If it is not positive and finite.

    Example:
        >>> from moon.objectives.mixing import check_concentration
        >>> check_concentration(0.2)
    """
    if not 0 < concentration < float("inf"):
        raise ValueError(f"concentration must be above 0 and finite, not {concentration}")
