"""The best of many scores, without sorting them."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from torch import Tensor

_BLOCK = 4096


def top(score: Tensor, count: int) -> Tensor:
    """The mask of the `count` highest scores. Nothing waits for the device.

    On a GPU the k-th highest is found eight bits at a time, and of its equals the first ones in memory are taken.
    """
    if score.dtype != torch.float32 or not 0 < count < score.numel() or not _has_kernels(score):
        mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
        return mask.index_fill_(0, score.flatten().topk(count, sorted=False).indices, True).view(score.shape)
    from moon.fast import kernels

    mask = torch.empty_like(score, dtype=torch.bool)  # dense, laid out as the score is or else in the usual way
    score = torch.empty_like(score).copy_(score) if score.stride() != mask.stride() else score
    size, device = score.numel(), score.device
    programs = -(-size // _BLOCK)
    histogram, counter = torch.zeros(257, dtype=torch.int32, device=device).split([256, 1])
    before = torch.empty(programs, dtype=torch.int32, device=device)
    found = torch.zeros(2, dtype=torch.int64, device=device)
    found[1] = count
    for shift in (24, 16, 8, 0):
        kernels.launch(
            kernels.digit, (programs,), score, histogram, found, counter, size, SHIFT=shift, BLOCK=_BLOCK, num_warps=8
        )
    parts = 1 << (programs - 1).bit_length()
    kernels.launch(
        kernels.ties, (programs,), score, found, before, counter, size, PARTS=parts, BLOCK=_BLOCK, num_warps=8
    )
    kernels.launch(kernels.mark, (programs,), score, found, before, mask, size, BLOCK=_BLOCK, num_warps=8)
    return mask


def _has_kernels(score: Tensor) -> bool:
    return score.is_cuda and find_spec("triton") is not None
