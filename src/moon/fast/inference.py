"""A copy of a trained network that only predicts, for training steps that run it: it computes the same in less time."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, relu

from moon.fast.buffers import active_buffers
from moon.fast.compiling import convolution, new_like

_CHANNELS_LAST = torch.channels_last


def inference_copy(model: nn.Module, precision: torch.dtype) -> nn.Module:
    """Copy a network for predictions only. The copy, in evaluation mode, computes the same, up to rounding.

    Autocast converts the weights of convolutions and linear layers in every forward pass. The copy has them in low
    precision as well, and uses these under autocast. In a training step on flat buffers on a GPU, `norm_relu` is one
    kernel for it. Layers of other classes, and layers with hooks, are copied as they are. Later changes of the network
    do not change the copy.
    """
    copy = deepcopy(model).requires_grad_(False).eval()
    is_low = precision.itemsize < torch.float32.itemsize
    for module in copy.modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            continue
        if type(module) is nn.BatchNorm2d and module.running_var is not None:
            module.__class__ = InferenceNorm
            vars(module)["inverse_std"] = (module.running_var + module.eps).rsqrt()
        elif is_low and type(module) in _LOW and module.weight.dtype == torch.float32:  # as autocast: not float64
            module.__class__ = _LOW[type(module)]
            assert isinstance(module, (InferenceLinear, InferenceConv))
            vars(module)["low"] = module.converted(precision)
    return copy


def _is_autocast(x: Tensor, precision: torch.dtype) -> bool:
    """Whether autocast to this dtype is on: networks may switch it off for some layers."""
    device = x.device.type
    return torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == precision


class InferenceLinear(nn.Linear):
    """A linear layer of an `inference_copy`."""

    low: tuple[Tensor, Tensor | None]

    def converted(self, precision: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias in low precision."""
        return self.weight.detach().to(precision), None if self.bias is None else self.bias.detach().to(precision)

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.low
        return linear(input, weight, bias) if _is_autocast(input, weight.dtype) else super().forward(input)


class InferenceConv(nn.Conv2d):
    """A convolution of an `inference_copy`, on a GPU computed as in training (see `layers.py`)."""

    low: tuple[Tensor, Tensor | None]

    def converted(self, precision: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """Weight and bias in low precision; on a GPU with input channels padded to a multiple of 8."""
        weight = self.weight.detach().to(precision)
        if self._is_as_in_training and self.groups == 1 and (missing := -weight.shape[1] % 8):
            weight = pad(weight, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=_layout(weight))
        return weight, None if self.bias is None else self.bias.detach().to(precision)

    @property
    def _is_as_in_training(self) -> bool:
        return _has_tensor_cores(self.weight) and self.padding_mode == "zeros" and not isinstance(self.padding, str)

    def forward(self, input: Tensor) -> Tensor:
        weight, bias = self.low
        if not _is_autocast(input, weight.dtype) or input.ndim != 4:
            return super().forward(input)
        if not self._is_as_in_training:
            return self._conv_forward(input, weight, bias)
        x, stride = input.to(weight.dtype), list(self.stride)
        if missing := weight.shape[1] * self.groups - x.shape[1]:
            x = pad(x, (0, 0, 0, 0, 0, missing)).contiguous(memory_format=_layout(weight))
        if weight.shape[2:] == (1, 1) and self.padding == (0, 0) and max(stride) > 1:
            x = x[:, :, :: stride[0], :: stride[1]].contiguous(memory_format=_layout(x))
            stride = [1, 1]
        out = convolution(x, weight, None, stride, list(self.padding), list(self.dilation), False, [0, 0], self.groups)
        return out if bias is None else out + bias.view(1, -1, 1, 1)


def _has_tensor_cores(x: Tensor) -> bool:
    return x.is_cuda


_LOW = {nn.Linear: InferenceLinear, nn.Conv2d: InferenceConv}


def _layout(x: Tensor) -> torch.memory_format:
    is_last = x.is_contiguous(memory_format=_CHANNELS_LAST) and not x.is_contiguous()
    return _CHANNELS_LAST if is_last else torch.contiguous_format


class InferenceNorm(nn.BatchNorm2d):
    """A BatchNorm layer of an `inference_copy`."""

    inverse_std: Tensor

    def forward(self, input: Tensor) -> Tensor:
        return self.fused(input, None, with_relu=False)

    def fused(self, x: Tensor, residual: Tensor | None, with_relu: bool) -> Tensor:
        """The normalised x, plus a residual, then ReLU: one kernel in a training step on flat buffers on a GPU."""
        if not self._is_supported(x, residual):
            out = super().forward(x) if residual is None else super().forward(x) + residual
            return relu(out) if with_relu else out
        from moon.fast import kernels

        y = new_like(x)
        rows, columns = x.numel() // x.shape[1], x.shape[1]
        kernels.launch(
            kernels.normalise, (-(-rows // 64), columns // 64), x, x if residual is None else residual, y,
            self.running_mean, self.inverse_std, self.weight, self.bias, rows, columns, RELU=with_relu,
            RESIDUAL=residual is not None, ROWS=64, COLUMNS=64, num_warps=4,
        )  # fmt: skip
        return y

    def _is_supported(self, x: Tensor, residual: Tensor | None) -> bool:
        """Whether the kernel supports this layer and its inputs."""
        return (
            _has_kernels(x) and self.affine and self.inverse_std.dtype == torch.float32
            and x.dtype in (torch.float32, torch.bfloat16, torch.float16) and x.numel() > 0
            and x.ndim == 4 and x.shape[1] % 64 == 0 and x.is_contiguous(memory_format=_CHANNELS_LAST)
            and (
                residual is None
                or (
                    residual.shape == x.shape and residual.dtype == x.dtype
                    and residual.is_contiguous(memory_format=_CHANNELS_LAST)
                )
            )
        )  # fmt: skip


def _has_kernels(x: Tensor) -> bool:
    return x.is_cuda and active_buffers() is not None  # such steps need Triton
