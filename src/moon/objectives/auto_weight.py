"""The weight w of the unknown-aware loss, tuned automatically (Algorithm 1)."""

from __future__ import annotations

import logging
from math import inf

import torch
from torch import Tensor, nn

from moon.fast import fused, move_average, schedule_weight

_log = logging.getLogger(__name__)


class AutoWeight(nn.Module):
    """The weight w of the unknown-aware loss, Algorithm 1 of the MOON paper.

    w = 0 in the first T_e epochs, which are called quiet. It then changes linearly from w_i = beta / r to w_f, which it
    reaches in the last epoch; a longer run keeps it. beta is a moving average, over the batches of the quiet epochs, of
    the batch mean of (1 - p_{K+1}) * L. It is the only state: a buffer that is NaN before the first batch, whose value
    it starts with.

    The paper does not define its ablation "without auto-tuning". The schedules "initial" and "final" are the two
    possible readings.

    Args:
        epochs: T, the number of epochs of the run.
        quiet_epochs: T_e, the number of epochs at the start in which w is 0.
        final: w_f, the value in the last epoch.
        init_factor: r; the first value after the quiet epochs is beta / r.
        smoothing: The weight of a new batch in the moving average, in (0, 1].
        schedule: "rising" for Algorithm 1; "initial" keeps beta / r after the quiet epochs; "final" is w_f from the
            first step on.

    Example:
        >>> import torch
        >>> from moon import AutoWeight
        >>> weight = AutoWeight(epochs=100, quiet_epochs=5, final=1.0)
        >>> weight.observe(torch.tensor([0.0, 0.5]), torch.tensor([2.2, 8.4]), epoch=0)  # beta = (2.2 + 4.2) / 2
        >>> [round(weight(epoch).item(), 3) for epoch in (4, 5, 52, 99)]  # 0, then from 3.2 / 64 to 1
        [0.0, 0.05, 0.525, 1.0]
    """

    beta: Tensor
    averages = ("beta",)  # buffers that several processes average, weighted by their shares of the batch

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
        if epochs < 1 or quiet_epochs < 0:
            raise ValueError(f"epochs={epochs} must be at least 1, quiet_epochs={quiet_epochs} at least 0")
        if quiet_epochs >= epochs:
            fitting = min(max(epochs // 20, 1), epochs - 1)  # 5 of 100 epochs, as in the paper
            raise ValueError(
                f"quiet_epochs={quiet_epochs} of epochs={epochs} leaves no epoch after them; it must be below epochs: "
                f"give quiet_epochs={fitting}, or train longer"
            )
        if not (0 <= final < inf and 0 < init_factor < inf and 0 < smoothing <= 1):
            raise ValueError(
                f"final={final} must be at least 0, init_factor={init_factor} above 0, smoothing={smoothing} in (0, 1]"
            )
        self.epochs, self.quiet_epochs, self.final = epochs, quiet_epochs, final
        self.init_factor, self.smoothing, self.schedule = init_factor, smoothing, schedule
        self.register_buffer("beta", torch.tensor(torch.nan))
        self._is_past = False  # whether a warning about the number of epochs was logged

    @torch.no_grad()
    def observe(self, p_unknown: Tensor, loss: Tensor, epoch: int | Tensor = 0) -> None:
        """Update beta with one batch; does nothing after the quiet epochs.

        Args:
            p_unknown: (N,), p_{K+1} of each sample.
            loss: (N,), the cross-entropy of each sample.
            epoch: The epoch, counted from 0; a tensor in a captured step.
        """
        if isinstance(epoch, int) and epoch >= self.quiet_epochs:
            return
        if self.beta.device != loss.device:
            self.beta = self.beta.to(loss.device)
        self.beta.copy_(_updated(self.beta, p_unknown, loss, self.smoothing, epoch, self.quiet_epochs))

    def forward(self, epoch: int | Tensor) -> Tensor:
        """Return w.

        Args:
            epoch: The epoch, counted from 0; a tensor in a captured step.

        Returns:
            w in this epoch, a scalar on the device of beta.
        """
        if self.schedule == "final":
            return torch.full_like(self.beta, self.final)
        if isinstance(epoch, int) and epoch >= self.epochs and not self._is_past:
            self._is_past = True
            _log.warning(
                "AutoWeight was built for %d epochs, and this is epoch %d, counted from 0: w stays at its final value; "
                "give AutoWeight the epochs of the run",
                *(self.epochs, epoch),
            )
        steps = self.epochs - 1 - self.quiet_epochs  # epochs from w_i to w_f
        rises = self.schedule == "rising"
        return _weight(self.beta, epoch, self.quiet_epochs, steps, self.init_factor, self.final, rises)


@fused(by=move_average)
def _updated(
    beta: Tensor, p_unknown: Tensor, loss: Tensor, smoothing: float, epoch: int | Tensor, quiet_epochs: int
) -> Tensor:
    """beta after a batch."""
    new = ((1 - p_unknown) * loss).mean().to(beta)
    new = torch.where(beta.isnan(), new, beta.lerp(new, smoothing))
    # If the epoch is a tensor, Python code must not wait for its value.
    return torch.where(epoch < quiet_epochs, new, beta) if isinstance(epoch, Tensor) else new


@fused(by=schedule_weight)
def _weight(
    beta: Tensor, epoch: int | Tensor, quiet_epochs: int, steps: int, init_factor: float, final: float, rises: bool
) -> Tensor:
    """w in this epoch: 0 in quiet epochs, then from w_i = beta / r to w_f in `steps` epochs, or w_i to the end."""
    progress = ((epoch - quiet_epochs) / steps if steps else 1.0) if rises else 0.0
    progress = progress.clamp(max=1.0) if isinstance(progress, Tensor) else min(progress, 1.0)
    w = beta.nan_to_num(0.0) * ((1 - progress) / init_factor) + final * progress
    is_on = epoch >= quiet_epochs
    return w if is_on is True else w * is_on
