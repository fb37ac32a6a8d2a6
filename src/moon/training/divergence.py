"""The check that a training run has not diverged."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from moon.errors import Diverged


def check_finite(losses: Tensor, model: nn.Module, epoch: int) -> None:
    """Raise Diverged if the loss of a step of the epoch, or a weight after it, is not finite.

    The epoch counts from 0; the message counts from 1, as the lines of `moon train` do.
    """
    bad = (~losses.isfinite()).nonzero().flatten().tolist()
    if not torch.stack([parameter.isfinite().all() for parameter in model.parameters()]).all():
        bad.append(len(losses) - 1)  # the update of the last step
    if bad:
        has_norms = any("Norm" in type(module).__name__ for module in model.modules())  # also those of other packages
        advice = " or a warm-up (warmup)" if has_norms else ", a warm-up (warmup) or a network with BatchNorm"
        raise Diverged(
            f"the loss is not finite from epoch {epoch + 1}, step {bad[0] + 1} of {len(losses)} on; try a lower "
            f"learning rate (lr_start){advice}{'; checkpoints of earlier epochs are kept' if epoch else ''}"
        )
