"""Convolutions and linear layers on flat buffers.

They compute with the low-precision weights, and the gradients of their weights are computed on a side stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear, pad

from moon.fast.buffers import FlatBuffers, active_buffers
from moon.fast.compiling import convolution, convolution_backward

_CHANNELS_LAST = torch.channels_last


@contextmanager
def layers_on_buffers(model: nn.Module) -> Iterator[None]:
    """Context in which the convolutions and linear layers of a model use the active flat buffers.

    Outside of `FlatBuffers.step` they compute as usual. Layers whose class overrides `forward` are not changed, unless
    the class that does so says that its forward pass `differs_in_precision_only`.
    """
    layers = {module: forward for module in model.modules() if (forward := _forward_on_buffers(module)) is not None}
    try:
        for module, forward in layers.items():
            module.forward = partial(forward, module)
        yield
    finally:
        for module in layers:
            vars(module).pop("forward", None)


def _forward_on_buffers(module: nn.Module) -> Callable[..., Tensor] | None:
    """The replacement of the module's forward pass; None if the module is of another kind or overrides `forward`."""
    kind = type(module)
    if "forward" in vars(module):
        return None
    definer = next(base for base in kind.__mro__ if "forward" in vars(base))
    is_linear = definer is nn.Linear or vars(definer).get("differs_in_precision_only", False)
    if isinstance(module, nn.Linear) and is_linear:
        return _linear
    is_usual = kind.forward is nn.Conv2d.forward and getattr(kind, "_conv_forward", None) is nn.Conv2d._conv_forward
    return _conv if isinstance(module, nn.Conv2d) and is_usual else None


def _conv(module: nn.Conv2d, x: Tensor) -> Tensor:
    """The forward pass of a convolution on flat buffers."""
    buffers = active_buffers()
    if (
        buffers is None
        or not buffers.supports(module.weight, module.bias)
        or isinstance(module.padding, str)
        or module.padding_mode != "zeros"
    ):
        return type(module).forward(module, x)
    geometry = list(module.stride), list(module.padding), list(module.dilation)
    out = _ConvFunction.apply(x, module.weight, buffers, geometry, module.groups)
    assert isinstance(out, Tensor)
    return out if module.bias is None else out + module.bias.to(out.dtype).view(1, -1, 1, 1)


def _linear(module: nn.Linear, x: Tensor) -> Tensor:
    """The forward pass of a linear layer on flat buffers."""
    buffers = active_buffers()
    if buffers is None or not buffers.supports(module.weight, module.bias) or x.ndim != 2:
        return type(module).forward(module, x)
    out = _LinearFunction.apply(x, module.weight, module.bias, buffers)
    assert isinstance(out, Tensor)
    return out


class _ConvFunction(torch.autograd.Function):
    """A convolution whose weight gradient is computed on the side stream, since only the update waits for it.

    Input channels are padded with zeros to a multiple of 8, which tensor cores need. A strided 1x1 convolution is
    computed as an unstrided one on the pixels it uses, because cuDNN's strided kernels are slow.
    """

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: nn.Parameter, buffers: FlatBuffers, geometry: tuple, groups: int
    ) -> Tensor:
        low = buffers.low_precision_of(weight)
        x = x.to(low.dtype)
        padding_channels = -x.shape[1] % 8 if groups == 1 else 0
        if padding_channels:
            x, low = (
                pad(tensor, (0, 0, 0, 0, 0, padding_channels)).contiguous(memory_format=_CHANNELS_LAST)
                for tensor in (x, low)
            )
        ctx.in_channels = x.shape[1] - padding_channels
        ctx.weight, ctx.buffers, ctx.arguments = weight, buffers, (None, *geometry, False, [0, 0], groups)
        ctx.used_arguments, used = ctx.arguments, x
        (down, right), padding, dilation = geometry
        if low.shape[2:] == (1, 1) and padding == [0, 0] and max(down, right) > 1:
            used = x[:, :, ::down, ::right].contiguous(memory_format=_CHANNELS_LAST)
            ctx.used_arguments = (None, [1, 1], padding, dilation, False, [0, 0], groups)
        ctx.save_for_backward(x, used, low)
        return convolution(used, low, *ctx.used_arguments)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, used, low = ctx.saved_tensors
        grad, buffers, in_channels = grads[0].to(low.dtype), ctx.buffers, ctx.weight.shape[1]
        grad_x = grad_weight = None
        # The gradient of x is computed first: the next layer waits for it, and the weight gradient is then computed in
        # parallel with the backward pass of that layer's BatchNorm.
        if ctx.needs_input_grad[0]:
            grad_x = convolution_backward(grad, x, low, *ctx.arguments, [True, False, False])[0][:, : ctx.in_channels]
        with buffers.on_side_stream(grad, used) if buffers.collecting else nullcontext():
            found = convolution_backward(grad, used, low, *ctx.used_arguments, [False, True, False])[1][:, :in_channels]
            if buffers.collecting:
                buffers.add_grad(ctx.weight, found)
            else:
                grad_weight = found.to(ctx.weight.dtype)
        return grad_x, grad_weight, None, None, None


class _LinearFunction(torch.autograd.Function):
    """A linear layer whose parameter gradients are computed on the side stream."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: nn.Parameter, bias: nn.Parameter | None, buffers: FlatBuffers) -> Tensor:
        low = buffers.low_precision_of(weight)
        x = x.to(low.dtype)
        ctx.save_for_backward(x, low)
        ctx.weight, ctx.bias, ctx.buffers = weight, bias, buffers
        return linear(x, low, None if bias is None else buffers.low_precision_of(bias))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, low = ctx.saved_tensors
        grad, buffers, bias = grads[0].to(low.dtype), ctx.buffers, ctx.bias
        with buffers.on_side_stream(grad, x) if buffers.collecting else nullcontext():
            grad_weight = grad.t() @ x
            grad_bias = None if bias is None else grad.sum(0, dtype=bias.dtype)
            if buffers.collecting:
                buffers.add_grad(ctx.weight, grad_weight)
                if grad_bias is not None:
                    buffers.add_grad(bias, grad_bias)
        grad_x = grad @ low if ctx.needs_input_grad[0] else None
        if buffers.collecting:
            return grad_x, None, None, None
        return grad_x, grad_weight.to(ctx.weight.dtype), grad_bias, None
