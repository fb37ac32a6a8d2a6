"""Algorithm 1: the weight w of the unknown-aware loss, tuned by what the quiet epochs showed."""

from __future__ import annotations

from math import inf

import torch
from torch import Tensor, nn

from moon.fast import fused


class AutoWeight(nn.Module):
    """w = 0 in the first T_e epochs, then linear from beta / r to w_f, reached in the last epoch.

    beta is the moving average of the batch mean of (1 - p_{K+1}) * L over the quiet epochs; it is the only state, a
    NaN until the first batch, which sets it. Nothing here waits for the device.

    The paper's ablation "without auto-tuning" can be read in two ways, which are two other values of `schedule`:
    "initial" stays at beta / r after the quiet epochs, "final" has w_f from the first step on.
    """

    beta: Tensor
    averages = ("beta",)  # what several processes make one of, weighted by their shares of the batch

    def __init__(
        self,
        epochs: int,
        quiet_epochs: int = 5,
        final: float = 1.0,
        init_factor: float = 64.0,
        smoothing: float = 0.05,
        schedule: str = "rising",
    ) -> None:
        super().__init__()
        if schedule not in ("rising", "initial", "final"):
            raise ValueError(f"schedule must be rising, initial or final, not '{schedule}'")
        if not 0 <= quiet_epochs < epochs:
            raise ValueError(
                f"quiet_epochs={quiet_epochs} of epochs={epochs} leaves no epoch for the unknown; "
                f"give quiet_epochs in 0..{max(epochs - 1, 0)} or train longer"
            )
        if not (0 <= final < inf and 0 < init_factor < inf and 0 < smoothing <= 1):
            raise ValueError(
                f"final={final} must be at least 0, init_factor={init_factor} above 0, smoothing={smoothing} in (0, 1]"
            )
        self.epochs, self.quiet_epochs, self.final = epochs, quiet_epochs, final
        self.init_factor, self.smoothing, self.schedule = init_factor, smoothing, schedule
        self.register_buffer("beta", torch.tensor(torch.nan))

    @torch.no_grad()
    def observe(self, p_unknown: Tensor, loss: Tensor, epoch: int | Tensor = 0) -> None:
        """Take one batch's p_{K+1} and cross-entropy, a value per sample, into beta, if the epoch is a quiet one."""
        if isinstance(epoch, int) and epoch >= self.quiet_epochs:
            return
        if self.beta.device != loss.device:
            self.beta = self.beta.to(loss.device)
        self.beta.copy_(_averaged(self.beta, p_unknown, loss, self.smoothing, epoch, self.quiet_epochs))

    def forward(self, epoch: int | Tensor) -> Tensor:
        """w in this epoch (counted from 0)."""
        if self.schedule == "final":
            return torch.full_like(self.beta, self.final)
        loud = self.epochs - 1 - self.quiet_epochs  # epochs from w_i to w_f
        rises = self.schedule == "rising"
        return _between(self.beta, epoch, self.quiet_epochs, loud, self.init_factor, self.final, rises)


@fused
def _averaged(
    beta: Tensor, p_unknown: Tensor, loss: Tensor, smoothing: float, epoch: int | Tensor, quiet_epochs: int
) -> Tensor:
    """beta after a batch."""
    new = ((1 - p_unknown) * loss).mean().to(beta)
    new = torch.where(beta.isnan(), new, beta.lerp(new, smoothing))
    # Whether a tensor's epoch is quiet is not known here, and asking would wait for the device.
    return torch.where(epoch < quiet_epochs, new, beta) if isinstance(epoch, Tensor) else new


@fused
def _between(
    beta: Tensor, epoch: int | Tensor, quiet_epochs: int, loud: int, init_factor: float, final: float, rises: bool
) -> Tensor:
    """w in this epoch: 0 while it is quiet, then from w_i = beta / r up to w_f, or w_i for ever."""
    progress = ((epoch - quiet_epochs) / loud if loud else 1.0) if rises else 0.0
    w = beta.nan_to_num(0.0) * ((1 - progress) / init_factor) + final * progress
    is_loud = epoch >= quiet_epochs
    return w if is_loud is True else w * is_loud
