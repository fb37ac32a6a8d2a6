"""Layers in a step on flat buffers: they read the narrow weights, and their gradients are computed beside the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from moon.fast.buffers import Flat, active

_LAST = torch.channels_last


@contextmanager
def on_buffers(model: nn.Module) -> Iterator[None]:
    """In a step inside (`Flat.step`) the model's convolutions and linear layers run on the buffers."""
    layers = {module: forward for module in model.modules() if (forward := _stand_in(module)) is not None}
    try:
        for module, forward in layers.items():
            module.forward = partial(forward, module)
        yield
    finally:
        for module in layers:
            vars(module).pop("forward", None)


def _stand_in(module: nn.Module) -> Callable[..., Tensor] | None:
    """What takes the place of the module's forward pass in a step; None where it has one of its own."""
    kind = type(module)
    if "forward" in vars(module):
        return None
    if isinstance(module, nn.Linear) and kind.forward is nn.Linear.forward:
        return _multiply
    is_usual = kind.forward is nn.Conv2d.forward and getattr(kind, "_conv_forward", None) is nn.Conv2d._conv_forward
    return _convolve if isinstance(module, nn.Conv2d) and is_usual else None


def _convolve(module: nn.Conv2d, x: Tensor) -> Tensor:
    """The forward pass of a convolution on flat buffers."""
    flat = active()
    if (
        flat is None
        or not flat.takes(module.weight, module.bias)
        or isinstance(module.padding, str)
        or module.padding_mode != "zeros"
    ):
        return type(module).forward(module, x)
    geometry = list(module.stride), list(module.padding), list(module.dilation)
    out = _Convolution.apply(x, module.weight, flat, geometry, module.groups)
    assert isinstance(out, Tensor)
    return out if module.bias is None else out + module.bias.to(out.dtype).view(1, -1, 1, 1)


def _multiply(module: nn.Linear, x: Tensor) -> Tensor:
    """The forward pass of a linear layer on flat buffers."""
    flat = active()
    if flat is None or not flat.takes(module.weight, module.bias) or x.ndim != 2:
        return type(module).forward(module, x)
    out = _Product.apply(x, module.weight, module.bias, flat)
    assert isinstance(out, Tensor)
    return out


class _Convolution(torch.autograd.Function):
    """A convolution whose weight's gradient is computed beside the rest of the backward pass: nothing but the update
    waits for it. Channels are filled up with zeros to what matrix units take; what a 1x1 kernel jumps over is left out
    before, because cuDNN is slow at jumping."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, flat: Flat, geometry: tuple, groups: int) -> Tensor:
        low = flat.narrow(weight)
        x = x.to(low.dtype)
        missing = -x.shape[1] % 8 if groups == 1 else 0
        if missing:
            x, low = (pad(tensor, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=_LAST) for tensor in (x, low))
        ctx.inputs = x.shape[1] - missing
        ctx.weight, ctx.flat, ctx.rest = weight, flat, (None, *geometry, False, [0, 0], groups)
        ctx.near, near = ctx.rest, x
        (down, right), padding, dilation = geometry
        if low.shape[2:] == (1, 1) and padding == [0, 0] and max(down, right) > 1:
            near = x[:, :, ::down, ::right].contiguous(memory_format=_LAST)
            ctx.near = (None, [1, 1], padding, dilation, False, [0, 0], groups)
        ctx.save_for_backward(x, near, low)
        return torch.ops.aten.convolution(near, low, *ctx.near)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, near, low = ctx.saved_tensors
        slope, flat, inputs = slopes[0].to(low.dtype), ctx.flat, ctx.weight.shape[1]
        back = torch.ops.aten.convolution_backward
        of_x = of_weight = None
        # First what the next layer waits for: the weight's gradient is beside that one's BatchNorm, not beside this.
        if ctx.needs_input_grad[0]:
            of_x = back(slope, x, low, *ctx.rest, [True, False, False])[0][:, : ctx.inputs]
        with flat.beside(slope, near) if flat.collects else nullcontext():
            found = back(slope, near, low, *ctx.near, [False, True, False])[1][:, :inputs]
            if flat.collects:
                flat.put(ctx.weight, found)
            else:
                of_weight = found.to(ctx.weight.dtype)
        return of_x, of_weight, None, None, None


class _Product(torch.autograd.Function):
    """A linear layer, whose own gradients are computed beside the rest as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, flat: Flat) -> Tensor:
        low = flat.narrow(weight)
        x = x.to(low.dtype)
        ctx.save_for_backward(x, low)
        ctx.weight, ctx.bias, ctx.flat = weight, bias, flat
        return linear(x, low, None if bias is None else flat.narrow(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, low = ctx.saved_tensors
        slope, flat, bias = slopes[0].to(low.dtype), ctx.flat, ctx.bias
        with flat.beside(slope, x) if flat.collects else nullcontext():
            of_weight = slope.t() @ x
            of_bias = None if bias is None else slope.sum(0, dtype=bias.dtype)
            if flat.collects:
                flat.put(ctx.weight, of_weight)
                if of_bias is not None:
                    flat.put(bias, of_bias)
        of_x = slope @ low if ctx.needs_input_grad[0] else None
        if flat.collects:
            return of_x, None, None, None
        return of_x, of_weight.to(ctx.weight.dtype), of_bias, None
