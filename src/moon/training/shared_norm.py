"""BatchNorm layers with the statistics of the batches of all processes, for training with several processes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from moon.training.peers import all_reduce


class _SharedSum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of their gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        total = grads[0].contiguous().clone()
        all_reduce(total)
        return total


def _shared_sum(value: Tensor) -> Tensor:
    total = _SharedSum.apply(value)
    assert isinstance(total, Tensor)
    return total


class _OverRanks:
    """The forward pass of a BatchNorm layer with the statistics of the batches of all processes."""

    def forward(self: nn.modules.batchnorm._BatchNorm, input: Tensor) -> Tensor:  # type: ignore[misc]
        if not self.training:
            return super().forward(input)  # type: ignore[misc]
        dims = [dim for dim in range(input.ndim) if dim != 1]
        wide = input.float() if input.element_size() < 4 else input
        count = torch.tensor(float(input.numel() // input.shape[1]), device=input.device, dtype=wide.dtype)
        total = _shared_sum(torch.cat([wide.sum(dims), count[None]]))
        number = total[-1].detach()
        mean = total[:-1] / number
        shape = [1, -1, *(1 for _ in dims[1:])]
        centred = wide - mean.view(shape)
        variance = _shared_sum(centred.square().sum(dims)) / number
        if self.track_running_stats and self.running_mean is not None and self.running_var is not None:
            assert self.num_batches_tracked is not None
            self.num_batches_tracked.add_(1)
            momentum = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            with torch.no_grad():
                self.running_mean.lerp_(mean.detach().to(self.running_mean), momentum)
                unbiased = variance.detach() * number / (number - 1)
                self.running_var.lerp_(unbiased.to(self.running_var), momentum)
        out = centred * (variance + self.eps).rsqrt().view(shape)
        if self.affine:
            out = out * self.weight.view(shape) + self.bias.view(shape)
        return out.to(input.dtype)


class _Shared1d(_OverRanks, nn.BatchNorm1d):
    pass


class _Shared2d(_OverRanks, nn.BatchNorm2d):
    pass


class _Shared3d(_OverRanks, nn.BatchNorm3d):
    pass


SHARED_NORMS: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: _Shared1d,
    nn.BatchNorm2d: _Shared2d,
    nn.BatchNorm3d: _Shared3d,
}
