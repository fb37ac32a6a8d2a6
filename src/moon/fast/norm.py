"""BatchNorm, the sum with a residual and ReLU as one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from moon.fast.buffers import Flat, active

# Tiles and programs, of several tried on an H200.
_COLUMNS = 32
_PROGRAMS = 256  # of a sum over rows
_SUM: dict[str, int] = {"ROWS": 128, "COLUMNS": _COLUMNS, "num_warps": 8}
_MAP: dict[str, int] = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}


def norm_relu(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(norm(x) + residual)."""
    return _normed(norm, x, residual, cut=True)


def again(x: Tensor) -> Tensor:
    """x for its second use. What `norm_relu` returns has a twin, so that the slopes of both uses arrive apart and the
    sum is not a pass over memory of its own."""
    return getattr(x, "_again", x)


def norm_only(norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """norm(x)."""
    return _normed(norm, x, None, cut=False)


def _normed(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, cut: bool) -> Tensor:
    flat = active()
    if flat is not None and _fits(norm, x, residual, flat):
        out, twin = _Norm.apply(x, residual, norm.weight, norm.bias, norm, flat, cut)  # type: ignore[misc]
        out._again = twin
        return out
    out = norm(x) if residual is None else norm(x) + residual
    return relu(out) if cut else out


def _fits(norm: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, flat: Flat) -> bool:
    """Whether the kernels do the same as the module."""
    last = torch.channels_last
    return (
        type(norm) is nn.BatchNorm2d and norm.training and norm.momentum is not None and norm.running_mean is not None
        and x.shape[1] % 64 == 0 and len(x) * x.shape[2] * x.shape[3] > 1
        and x.is_contiguous(memory_format=last)
        and (residual is None or (residual.dtype == x.dtype and residual.is_contiguous(memory_format=last)))
        and flat.holds(norm.weight) and flat.holds(norm.bias) and _has_kernels(x)
    )  # fmt: skip


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda


class _Norm(torch.autograd.Function):
    """Two passes forward (moments, normalise), two back (slopes, back); statistics and sums are float32."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        flat: Flat,
        cut: bool,
    ) -> tuple[Tensor, Tensor]:
        from moon.fast import kernels

        rows, columns = x.numel() // x.shape[1], x.shape[1]
        mean, inverse = torch.empty(2, columns, device=x.device).unbind()
        y = torch.empty_like(x)
        with_residual = residual is not None
        grid, part = _divided(rows, columns)
        parts = torch.empty(2, grid[0], columns, device=x.device).unbind()
        kernels.launch(
            kernels.moments, grid, x, *parts, flat.counter, mean, inverse,
            norm.running_mean, norm.running_var, norm.num_batches_tracked,
            rows, columns, part, norm.eps, norm.momentum, PARTS=_power_of_two(grid[0]), **_SUM,
        )  # fmt: skip
        kernels.launch(
            kernels.normalise, (-(-rows // 64), columns // 64), x, residual if with_residual else x, y, mean, inverse,
            norm.weight, norm.bias, rows, columns, RELU=cut, RESIDUAL=with_residual, **_MAP,
        )  # fmt: skip
        ctx.save_for_backward(x, mean, inverse, *([y] if with_residual else []))
        ctx.norm, ctx.flat, ctx.cut, ctx.with_residual = norm, flat, cut, with_residual
        ctx.set_materialize_grads(False)
        twin = torch.empty(0, dtype=y.dtype, device=y.device)  # no view of y, so autograd sees two tensors
        return y, twin.set_(y.untyped_storage(), 0, y.shape, y.stride())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        from moon.fast import kernels

        x, mean, inverse, *ys = ctx.saved_tensors
        norm, flat, residual = ctx.norm, ctx.flat, ctx.with_residual
        came = [s.to(x.dtype).contiguous(memory_format=torch.channels_last) for s in slopes if s is not None]
        if not came:
            return (None,) * 7
        slope, two = came[0], len(came) == 2
        rows, columns = x.numel() // x.shape[1], x.shape[1]
        slope_of_x = torch.empty_like(x)
        of_x = mean, inverse, norm.weight, norm.bias
        is_written = residual or two
        passed = torch.empty_like(x) if is_written else slope
        adds = False
        if flat.collects:
            both = norm.weight, norm.bias
            own, firsts = [flat.slope_of(p) for p in both], [flat.is_first(p) for p in both]
            adds = not all(firsts)
            for mine, is_first in zip(own, firsts, strict=True):
                if adds and is_first:  # the other one is shared with a norm that was here before
                    mine.zero_()
        else:
            own = torch.empty(2, columns, device=x.device).unbind()
        grid, part = _divided(rows, columns)
        parts = torch.empty(2, grid[0], columns, device=x.device).unbind()
        sums = torch.empty(2, columns, device=x.device)
        kernels.launch(
            kernels.slopes, grid, slope, came[-1], x, ys[0] if residual else x, passed, *parts, flat.counter, *of_x,
            *own, sums, rows, columns, part, RELU=ctx.cut, RESIDUAL=residual, TWO=two, ADD=adds,
            PARTS=_power_of_two(grid[0]), **_SUM,
        )  # fmt: skip
        kernels.launch(
            kernels.back, (-(-rows // 64), columns // 64), passed, x, slope_of_x, *of_x, sums, rows, columns,
            RELU=ctx.cut and not is_written, **_MAP,
        )  # fmt: skip
        of_weight, of_bias = (None, None) if flat.collects else own
        return slope_of_x, passed if residual else None, of_weight, of_bias, None, None, None


def _divided(rows: int, columns: int) -> tuple[tuple[int, int], int]:
    """How a sum over rows is divided: programs for rows and for columns, and rows a program."""
    blocks = columns // _COLUMNS
    part = -(-rows * blocks // _PROGRAMS)
    part = -(-part // 64) * 64
    return (-(-rows // part), blocks), part


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()
