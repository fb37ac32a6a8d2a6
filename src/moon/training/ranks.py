"""Several processes that train as one, started by torchrun: each takes its part of every batch.

What one process would have computed, all of them compute: gradients, BatchNorm statistics and beta are those of the
whole batch, so that masks, which follow from weights, gradients and the seed, agree on all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """This process among all: number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the processes that torchrun started, or be the only one."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            own_gpu = (
                device.type == "cuda" and int(os.environ.get("LOCAL_WORLD_SIZE", "1")) <= torch.cuda.device_count()
            )
            dist.init_process_group("nccl" if own_gpu else "gloo")  # NCCL wants a GPU for each process
        return cls(dist.get_rank(), count)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and prints."""
        return self.rank == 0

    def share(self, own: int, whole: int) -> float:
        """The share of a batch that this process has; one that is too small for all is everybody's."""
        return 1 / self.count if own == whole else own / whole

    def part(self, *tensors: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        """This process's part of a batch, and its share; a batch that is too small for all is everybody's."""
        size = len(tensors[0])
        if self.count == 1 or size < 2 * self.count:  # BatchNorm needs two images, wherever they are
            return self.share(size, size), tensors
        parts = tuple(tensor[self.rank :: self.count] for tensor in tensors)
        return self.share(len(parts[0]), size), parts

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Put the sum over all processes into each tensor."""
        if self.count == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for parts in by_type.values():
            flat = torch.cat([part.reshape(-1) for part in parts])
            dist.all_reduce(flat)
            for part, new in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(new.view(part.shape))

    def wait(self) -> None:
        """Until all are here."""
        if self.count > 1:
            dist.barrier()

    def share_norms(self, model: nn.Module) -> None:
        """Make every BatchNorm of the model one over the batches of all processes; weights and names stay."""
        if self.count > 1:
            for module in model.modules():
                if type(module) in _SHARED:
                    module.__class__ = _SHARED[type(module)]

    def check_agreement(self, tensors: dict[str, Tensor]) -> None:
        """Refuse to go on where processes have come apart."""
        if self.count == 1 or not tensors:
            return
        own = torch.stack([tensor.double().sum() for tensor in tensors.values()])
        first = own.clone()
        dist.broadcast(first, 0)
        apart = [name for name, same in zip(tensors, (own == first).tolist(), strict=True) if not same]
        if apart:
            raise RuntimeError(
                f"process {self.rank} of {self.count} has other values of '{apart[0]}' than the first one"
            )


class _SharedSum(torch.autograd.Function):
    """The sum over all processes; its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx: Any, own: Tensor) -> Tensor:
        total = own.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Tensor:
        total = slopes[0].contiguous().clone()
        dist.all_reduce(total)
        return total


def _shared_sum(own: Tensor) -> Tensor:
    total = _SharedSum.apply(own)
    assert isinstance(total, Tensor)
    return total


class _OverRanks:
    """The forward pass of a BatchNorm whose statistics are those of all processes' batches together."""

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


_SHARED: dict[type[nn.Module], type[nn.Module]] = {
    nn.BatchNorm1d: _Shared1d,
    nn.BatchNorm2d: _Shared2d,
    nn.BatchNorm3d: _Shared3d,
}
