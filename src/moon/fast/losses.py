"""MOON's loss and its weight as kernels, for training steps on flat buffers on a GPU.

The functions have the arguments and results of those in `moon.objectives` that are equations; see `fused`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

_ELEMENTS = 4096  # of a tile


def unknown_aware_loss(logits: Tensor, y: Tensor, w: float | Tensor) -> Tensor:
    """`moon.moon_loss`, in float32, for a scalar w without a gradient."""
    scalar = w if isinstance(w, Tensor) else torch.full((), w, device=logits.device)
    if scalar.numel() != 1 or scalar.requires_grad:
        raise ValueError("w must be a scalar that needs no gradient in a captured step; train with captured=False")
    loss = _UnknownAwareLoss.apply(logits, y, scalar)
    assert isinstance(loss, Tensor)
    return loss


class _UnknownAwareLoss(torch.autograd.Function):
    """One kernel computes the loss and its gradient."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, y: Tensor, w: Tensor) -> Tensor:
        from moon.fast import kernels, loss_kernels

        logits = logits.contiguous()
        loss, grad = torch.empty((), device=logits.device), torch.empty_like(logits)
        values = logits, y.contiguous(), w, loss, grad, *logits.shape
        kernels.launch(loss_kernels.unknown_aware, (1,), *values, **_tile(logits))
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (grad,) = ctx.saved_tensors
        return (grad * grads[0]).to(grad.dtype), None, None


def observe_batch(logits: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """p_{K+1} and the cross-entropy of each sample."""
    from moon.fast import kernels, loss_kernels

    logits = logits.contiguous()
    p_unknown, loss = torch.empty(2, len(logits), device=logits.device).unbind()
    tile = _tile(logits)
    values = logits, y.contiguous(), p_unknown, loss, *logits.shape
    kernels.launch(loss_kernels.observation, (-(-len(logits) // tile["ROWS"]),), *values, **tile)
    return p_unknown, loss


def move_average(
    beta: Tensor, p_unknown: Tensor, loss: Tensor, smoothing: float, epoch: int | Tensor, quiet_epochs: int
) -> Tensor:
    """beta of `AutoWeight` after a batch."""
    from moon.fast import kernels, loss_kernels

    new = torch.empty_like(beta)
    values = (
        beta,
        p_unknown.contiguous(),
        loss.contiguous(),
        new,
        _on_device(epoch, beta),
        smoothing,
        quiet_epochs,
        len(loss),
    )
    kernels.launch(loss_kernels.moving_average, (1,), *values, ROWS=1024)
    return new


def schedule_weight(
    beta: Tensor, epoch: int | Tensor, quiet_epochs: int, steps: int, init_factor: float, final: float, rises: bool
) -> Tensor:
    """w of `AutoWeight` in this epoch."""
    from moon.fast import kernels, loss_kernels

    w = torch.empty_like(beta)
    values = beta, w, _on_device(epoch, beta), quiet_epochs, steps, float(init_factor), float(final)
    kernels.launch(loss_kernels.scheduled_weight, (1,), *values, RISES=rises)
    return w


def _on_device(epoch: int | Tensor, like: Tensor) -> Tensor:
    return epoch if isinstance(epoch, Tensor) else torch.full((), epoch, dtype=torch.int64, device=like.device)


def _tile(logits: Tensor) -> dict[str, int]:
    columns = 1 << (logits.shape[1] - 1).bit_length()
    rows = 1 << (len(logits) - 1).bit_length()
    return {"ROWS": max(1, min(rows, _ELEMENTS // columns)), "COLUMNS": columns, "num_warps": 8}
