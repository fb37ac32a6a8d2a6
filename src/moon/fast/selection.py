"""Masks of the highest scores, without sorting on a GPU."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from importlib.util import find_spec

import torch
from torch import Tensor

_BLOCK = 4096
_kernels_work = True  # set to False if one cannot be compiled on this machine


def top_masks(scores: Sequence[Tensor], counts: Sequence[int], ties: Sequence[Tensor] | None = None) -> list[Tensor]:
    """Mark the `counts` highest scores of each tensor, without waiting for the device.

    On a GPU the k-th highest scores of all tensors are found together, eight bits at a time. Of scores equal to the
    k-th highest, those with the highest `ties`, numbers in [0, 1), are marked. Without them, on a GPU the first in
    memory are marked, on a CPU any.
    """
    masks = _top_masks(scores, counts)
    if ties is None:
        return masks
    return _top_masks([break_ties(*layer) for layer in zip(scores, masks, ties, strict=True)], counts)


def break_ties(score: Tensor, mask: Tensor, ties: Tensor, dim: int | None = None) -> Tensor:
    """Replace scores by numbers whose highest are the same, except that equal scores are ordered by other numbers.

    `mask` has the highest scores, along `dim` or of the whole tensor. The result is 2 for scores above the lowest one
    in it, -1 for those below, and `ties`, numbers in [0, 1), for those that are equal to it. Scores of minus infinity
    stay, so that they are still the last.
    """
    selected = torch.where(mask, score, torch.inf)
    lowest = selected.amin() if dim is None else selected.amin(dim, keepdim=True)
    ordered = torch.where(score == lowest, ties, torch.where(score < lowest, -1.0, 2.0).to(ties))  # NaN: 2
    return torch.where(score == -torch.inf, -torch.inf, ordered)


def _top_masks(scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """`top_masks` without numbers for ties."""
    global _kernels_work
    if _kernels_work and all(_has_kernels(score) for score in scores):
        try:
            return _by_kernels([_without_gaps(score) for score in scores], counts)
        except Exception as error:
            _kernels_work = False
            reason = next(iter(str(error).strip().splitlines()), type(error).__name__)  # an assert has no message
            warnings.warn(f"masks are computed by sorting, which is slower: {reason}", stacklevel=3)
    return [_by_sorting(score, count) for score, count in zip(scores, counts, strict=True)]


def _by_kernels(scores: list[Tensor], counts: Sequence[int]) -> list[Tensor]:
    if not scores:
        return []
    from moon.fast import kernels

    device = scores[0].device
    flat = torch.cat([score.as_strided((score.numel(),), (1,), score.storage_offset()) for score in scores])
    masks = torch.empty(flat.shape, dtype=torch.bool, device=device)
    sizes = [score.numel() for score in scores]
    blocks, parts = _blocks(tuple(sizes), _BLOCK, device)
    histograms, counters = torch.zeros(257 * len(sizes), dtype=torch.int32, device=device).tensor_split([-len(sizes)])
    # For each list: the upper bits found so far, how many scores with these bits to take, and how many in all.
    found = torch.tensor([[0, count, count] for count in counts]).to(device, non_blocking=True)
    before = torch.empty(len(blocks), dtype=torch.int32, device=device)
    grid, options = (len(blocks),), {"BLOCK": _BLOCK, "num_warps": 8}
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        for shift in (24, 16, 8, 0):
            kernels.launch(
                kernels.select_digit, grid, flat, blocks, histograms, found, counters, SHIFT=shift, **options
            )
        kernels.launch(kernels.count_ties, grid, flat, blocks, found, before, counters, PARTS=parts, **options)
        kernels.launch(kernels.write_masks, grid, flat, blocks, found, before, masks, **options)
    return [
        part.as_strided(score.shape, score.stride(), part.storage_offset())
        for part, score in zip(masks.split(sizes), scores, strict=True)
    ]


def _by_sorting(score: Tensor, count: int) -> Tensor:
    mask = torch.zeros(score.numel(), dtype=torch.bool, device=score.device)
    return mask.index_fill_(0, score.flatten().topk(count, sorted=False).indices, True).view(score.shape)


def _without_gaps(score: Tensor) -> Tensor:
    """The score, copied if it has gaps in memory."""
    like = torch.empty_like(score, device="meta")  # has the strides of the score only if the score has no gaps
    return score if score.stride() == like.stride() else score.contiguous()


@lru_cache(maxsize=64)
def _blocks(sizes: tuple[int, ...], block: int, device: torch.device) -> tuple[Tensor, int]:
    """The blocks of all lists, and the largest number of blocks of a list rounded up to a power of two.

    A block is a row of five numbers: its start, the end of its list, the number of the list, the list's first block and
    its number of blocks.
    """
    rows, start = [], 0
    for number, size in enumerate(sizes):
        first, count = len(rows), -(-size // block)
        rows += [[start + block * index, start + size, number, first, count] for index in range(count)]
        start += size
    return torch.tensor(rows).to(device), 1 << (max(row[4] for row in rows) - 1).bit_length()


def _has_kernels(score: Tensor) -> bool:
    return score.is_cuda and score.dtype == torch.float32 and find_spec("triton") is not None
