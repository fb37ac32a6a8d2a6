"""The best of many scores, without sorting them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

_BLOCK = 4096
_works = True  # until a kernel cannot be compiled here


def top(scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Of each list of scores the mask of so many highest. Nothing waits for the device.

    On a GPU the k-th highest of all lists are found at once, eight bits at a time, and of its equals the first ones in
    memory are taken.
    """
    global _works
    if _works and all(_is_selected(score) for score in scores):
        try:
            return _selected([_dense(score) for score in scores], counts)
        except Exception as error:
            _works = False
            warnings.warn(f"scores are sorted, which is slower: {str(error).strip().splitlines()[0]}", stacklevel=2)
    return [_sorted(score, count) for score, count in zip(scores, counts, strict=True)]


def _selected(scores: list[Tensor], counts: Sequence[int]) -> list[Tensor]:
    if not scores:
        return []
    from moon.fast import kernels

    device = scores[0].device
    flat = torch.cat([score.as_strided((score.numel(),), (1,), score.storage_offset()) for score in scores])
    masks = torch.empty(flat.shape, dtype=torch.bool, device=device)
    sizes = [score.numel() for score in scores]
    blocks, parts = _blocks(tuple(sizes), _BLOCK, device)
    histograms, counters = torch.zeros(257 * len(sizes), dtype=torch.int32, device=device).tensor_split([-len(sizes)])
    # The upper bits known so far, how many of those that have them are wanted, how many in all.
    found = torch.tensor([[0, count, count] for count in counts]).to(device, non_blocking=True)
    before = torch.empty(len(blocks), dtype=torch.int32, device=device)
    grid, rest = (len(blocks),), {"BLOCK": _BLOCK, "num_warps": 8}
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for shift in (24, 16, 8, 0):
            kernels.launch(kernels.digit, grid, flat, blocks, histograms, found, counters, SHIFT=shift, **rest)
        kernels.launch(kernels.ties, grid, flat, blocks, found, before, counters, PARTS=parts, **rest)
        kernels.launch(kernels.mark, grid, flat, blocks, found, before, masks, **rest)
    return [
        part.as_strided(score.shape, score.stride(), part.storage_offset())
        for part, score in zip(masks.split(sizes), scores, strict=True)
    ]


def _sorted(score: Tensor, count: int) -> Tensor:
    mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    return mask.index_fill_(0, score.flatten().topk(count, sorted=False).indices, True).view(score.shape)


def _dense(score: Tensor) -> Tensor:
    """The score without gaps in memory."""
    like = torch.empty_like(score, device="meta")  # laid out as the score is, where that has no gaps
    return score if score.stride() == like.stride() else score.contiguous()


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...], block: int, device: torch.device) -> tuple[Tensor, int]:
    """Begin, list's end, list, the list's first block and number of blocks, for each block of all lists in a row; and
    the largest number of blocks as a power of two."""
    rows, begin = [], 0
    for which, size in enumerate(sizes):
        first, count = len(rows), -(-size // block)
        rows += [[begin + block * index, begin + size, which, first, count] for index in range(count)]
        begin += size
    return torch.tensor(rows).to(device), 1 << (max(row[4] for row in rows) - 1).bit_length()


def _is_selected(score: Tensor) -> bool:
    return score.is_cuda and score.dtype == torch.float32 and find_spec("triton") is not None
