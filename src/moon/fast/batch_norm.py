"""BatchNorm, the addition of a residual and ReLU as one operation."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import relu

from moon.fast.buffers import FlatBuffers, active_buffers
from moon.fast.compiling import new_like

# Tile sizes and numbers of programs, the best of several tried on an H200.
_COLUMNS = 32
_PROGRAMS = 256  # of a sum over rows
_SUM_OPTIONS: dict[str, int] = {"ROWS": 128, "COLUMNS": _COLUMNS, "num_warps": 8}
_MAP_OPTIONS: dict[str, int] = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}


def norm_relu(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None = None) -> Tensor:
    """relu(layer(x) + residual), fused into a few kernels in a training step on flat buffers.

    The layer is one of a network or of an `inference_copy`, `x` is (N, C, H, W). If two layers consume the result, pass
    `second_use(result)` to the second one.
    """
    return _norm(layer, x, residual, with_relu=True)


def norm(layer: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """layer(x) for x of shape (N, C, H, W), fused into a few kernels in a training step on flat buffers."""
    return _norm(layer, x, None, with_relu=False)


def second_use(x: Tensor) -> Tensor:
    """The tensor to pass to the second consumer of x, such as the shortcut of a residual block: x itself or its twin.

    In a step on flat buffers the results of `norm` and `norm_relu` have a twin with the same memory. If the second
    consumer uses the twin, the gradients of both uses arrive separately, and the BatchNorm kernel adds them; autograd
    would need another pass over memory for the sum.
    """
    buffers = active_buffers()
    return x if buffers is None else buffers.second_use(x)


def _norm(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, with_relu: bool) -> Tensor:
    if (fused := getattr(layer, "fused", None)) is not None:  # a layer of an `inference_copy`
        return fused(x, residual, with_relu)
    buffers = active_buffers()
    if buffers is not None and _is_supported(layer, x, residual, buffers):
        inputs = x, residual, layer.weight, layer.bias, layer, buffers, with_relu
        out, twin = _NormFunction.apply(*inputs)  # type: ignore[misc]
        buffers.keep_second_use(out, twin)
        return out
    out = layer(x) if residual is None else layer(x) + residual
    return relu(out) if with_relu else out


def _is_supported(layer: nn.BatchNorm2d, x: Tensor, residual: Tensor | None, buffers: FlatBuffers) -> bool:
    """Whether the kernels support this layer and its inputs."""
    last = torch.channels_last
    return (
        type(layer) is nn.BatchNorm2d and layer.training
        and layer.momentum is not None and layer.running_mean is not None
        and x.shape[1] % 64 == 0 and len(x) * x.shape[2] * x.shape[3] > 1
        and x.is_contiguous(memory_format=last)
        and (residual is None or (residual.dtype == x.dtype and residual.is_contiguous(memory_format=last)))
        and buffers.holds(layer.weight) and buffers.holds(layer.bias) and _has_kernels(x)
    )  # fmt: skip


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda


class _NormFunction(torch.autograd.Function):
    """Two kernels forward (`moments`, `normalise`), two backward (`norm_grad_sums`, `norm_grad_input`).

    Statistics and sums are float32.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        residual: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        norm: nn.BatchNorm2d,
        buffers: FlatBuffers,
        with_relu: bool,
    ) -> tuple[Tensor, Tensor]:
        from moon.fast import kernels

        rows, columns = x.numel() // x.shape[1], x.shape[1]
        mean, inverse_std = torch.empty(2, columns, device=x.device).unbind()
        y = new_like(x)
        with_residual = residual is not None
        grid, part = _divide(rows, columns)
        parts = torch.empty(2, grid[0], columns, device=x.device).unbind()
        kernels.launch(
            kernels.moments, grid, x, *parts, buffers.counter, mean, inverse_std,
            norm.running_mean, norm.running_var, norm.num_batches_tracked,
            rows, columns, part, norm.eps, norm.momentum, PARTS=_power_of_two(grid[0]), **_SUM_OPTIONS,
        )  # fmt: skip
        kernels.launch(
            kernels.normalise, (-(-rows // 64), columns // 64), x, residual if with_residual else x, y, mean,
            inverse_std, norm.weight, norm.bias, rows, columns, RELU=with_relu, RESIDUAL=with_residual, **_MAP_OPTIONS,
        )  # fmt: skip
        ctx.save_for_backward(x, mean, inverse_std, *([y] if with_residual else []))
        ctx.norm, ctx.buffers, ctx.with_relu, ctx.with_residual = norm, buffers, with_relu, with_residual
        ctx.set_materialize_grads(False)
        twin = torch.empty(0, dtype=y.dtype, device=y.device)  # not a view of y: autograd must see two tensors
        return y, twin.set_(y.untyped_storage(), 0, y.shape, y.stride())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        from moon.fast import kernels

        x, mean, inverse_std, *ys = ctx.saved_tensors
        norm, buffers, with_residual = ctx.norm, ctx.buffers, ctx.with_residual
        given = [g.to(x.dtype).contiguous(memory_format=torch.channels_last) for g in grads if g is not None]
        if not given:
            return (None,) * 7
        grad, has_two = given[0], len(given) == 2
        rows, columns = x.numel() // x.shape[1], x.shape[1]
        grad_x = new_like(x)
        parameters = mean, inverse_std, norm.weight, norm.bias
        writes_grad_out = with_residual or has_two
        grad_out = new_like(x) if writes_grad_out else grad
        parameter_grads, adds = _parameter_grads(norm, buffers, x)
        grid, part = _divide(rows, columns)
        parts = torch.empty(2, grid[0], columns, device=x.device).unbind()
        means = torch.empty(2, columns, device=x.device)
        kernels.launch(
            kernels.norm_grad_sums, grid, grad, given[-1], x, ys[0] if with_residual else x, grad_out, *parts,
            buffers.counter, *parameters, *parameter_grads, means, rows, columns, part,
            RELU=ctx.with_relu, RESIDUAL=with_residual, TWO=has_two, ADD=adds,
            PARTS=_power_of_two(grid[0]), **_SUM_OPTIONS,
        )  # fmt: skip
        kernels.launch(
            kernels.norm_grad_input, (-(-rows // 64), columns // 64), grad_out, x, grad_x, *parameters, means, rows,
            columns, RELU=ctx.with_relu and not writes_grad_out, **_MAP_OPTIONS,
        )  # fmt: skip
        grad_weight, grad_bias = (None, None) if buffers.collecting else parameter_grads
        return grad_x, grad_out if with_residual else None, grad_weight, grad_bias, None, None, None


def _parameter_grads(norm: nn.BatchNorm2d, buffers: FlatBuffers, x: Tensor) -> tuple[tuple[Tensor, Tensor], bool]:
    """Where to write the gradients of weight and bias, and whether to add to the values there."""
    if not buffers.collecting:
        weight_grad, bias_grad = torch.empty(2, x.shape[1], device=x.device).unbind()
        return (weight_grad, bias_grad), False
    grads = buffers.grad_of(norm.weight), buffers.grad_of(norm.bias)
    firsts = [buffers.register_grad(parameter) for parameter in (norm.weight, norm.bias)]
    adds = not all(firsts)
    for grad, is_first in zip(grads, firsts, strict=True):
        if adds and is_first:  # the other parameter is shared with an earlier layer
            grad.zero_()
    return grads, adds


def _divide(rows: int, columns: int) -> tuple[tuple[int, int], int]:
    """How to divide a sum over rows: the numbers of programs for rows and for columns, and the rows per program."""
    blocks = columns // _COLUMNS
    part = -(-rows * blocks // _PROGRAMS)
    part = -(-part // 64) * 64
    return (-(-rows // part), blocks), part


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
