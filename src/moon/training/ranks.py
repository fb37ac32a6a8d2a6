"""Training with several processes, started by torchrun: each computes its part of every batch.

The result is that of one process: gradients, BatchNorm statistics and the moving averages of objectives are those of
the whole batch, so the masks are the same in all processes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moon.training import peers
from moon.training.shared_norm import SHARED_NORMS


@dataclass(frozen=True)
class Ranks:
    """This process, number `rank` from 0, among the `count` that train together."""

    rank: int = 0
    count: int = 1

    @classmethod
    def join(cls, device: torch.device) -> Ranks:
        """Join the processes that torchrun started; `Ranks()` if this is the only one.

        Raises RankLost if they cannot be reached, or do not all start within half an hour.
        """
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            local_count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
            has_own_gpu = device.type == "cuda" and local_count <= torch.cuda.device_count()
            peers.join("nccl" if has_own_gpu else "gloo")  # NCCL needs one GPU per process
        return cls(dist.get_rank(), count)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and prints."""
        return self.rank == 0

    def share(self, size: int, batch_size: int) -> float:
        """The weight of this process's part in the mean over a batch; those of all processes add up to 1.

        A batch that is too small to be divided is computed by every process; `size` is equal to `batch_size` then.
        """
        return 1 / self.count if size == batch_size else size / batch_size

    def part(self, *tensors: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        """This process's part of the tensors of a batch, after its weight in the mean over the batch, see `share`.

        A batch with fewer than two images per process is not divided.
        """
        size = len(tensors[0])
        if self.count == 1 or size < 2 * self.count:  # BatchNorm needs two images in each process
            return self.share(size, size), tensors
        parts = tuple(tensor[self.rank :: self.count] for tensor in tensors)
        return self.share(len(parts[0]), size), parts

    def sum(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in place."""
        if self.count == 1:
            return
        by_type: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_type.setdefault(tensor.dtype, []).append(tensor)
        for parts in by_type.values():
            flat = torch.cat([part.reshape(-1) for part in parts])
            peers.all_reduce(flat)
            for part, new in zip(parts, flat.split([part.numel() for part in parts]), strict=True):
                part.copy_(new.view(part.shape))

    def wait(self) -> None:
        """Wait for all processes."""
        if self.count > 1:
            peers.barrier()

    def share_norms(self, model: nn.Module) -> None:
        """Make every BatchNorm layer of a model use the statistics of all processes; parameters and names stay."""
        if self.count > 1:
            for module in model.modules():
                if type(module) in SHARED_NORMS:
                    module.__class__ = SHARED_NORMS[type(module)]

    def check_agreement(self, tensors: dict[str, Tensor]) -> None:
        """Raise a RuntimeError if a tensor differs from that of the first process."""
        if self.count == 1 or not tensors:
            return
        sums = torch.stack([tensor.double().sum() for tensor in tensors.values()])
        first = sums.clone()
        peers.broadcast(first)
        different = [name for name, same in zip(tensors, (sums == first).tolist(), strict=True) if not same]
        if different:
            raise RuntimeError(
                f"'{different[0]}' of process {self.rank} of {self.count} differs from that of process 0"
            )
