"""Choose masks: the first ones of a topology, and those of the highest scores over all layers together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from moon.fast import top_masks
from moon.seeds import generator
from moon.sparse.pattern import UNSTRUCTURED, Pattern
from moon.sparse.rows import RowGroups, join

FirstMask = Literal["random", "magnitude"]


def first_masks(
    weights: Mapping[str, Tensor],
    counts: Mapping[str, int],
    groups: RowGroups,
    pattern: Pattern,
    kept: FirstMask,
    seed: int,
) -> dict[str, Tensor]:
    """Choose the masks that training starts with; they have the devices and memory layouts of the weights.

    A weight that is sparse already keeps its largest non-zeros, whatever `kept` says: they were trained and loaded
    before.
    """
    masks = {}
    for index, (name, weight) in enumerate(weights.items()):
        if kept == "magnitude":
            scores = weight.detach().abs().cpu()
        else:
            scores = torch.rand(weight.shape, generator=generator("mask", seed, index))
            if 0 < int(weight.count_nonzero()) <= max(counts[name], weight.numel() // 2):
                magnitude = weight.detach().abs().cpu()
                scores = torch.where(magnitude > 0, 1 + magnitude, scores)
        mask = torch.zeros(weight.shape, dtype=torch.bool)
        for rows, count in groups.divide(name, counts[name]):
            (mask[rows],) = pattern.fill([mask[rows]], [scores[rows]], [count])
        masks[name] = torch.empty_like(weight, dtype=torch.bool).copy_(mask)
    return masks


def best_masks(
    scores: Mapping[str, Tensor],
    planned: Mapping[str, int],
    groups: RowGroups,
    pattern: Pattern,
    budget: Callable[[str], int],
) -> dict[str, Tensor]:
    """Choose the highest scores over all layers together: as many as planned in total, at least one per layer.

    The unknown output of an `OpenHead` keeps its share of `budget(name)`, see `RowGroups.divide`. With a pattern, each
    layer keeps its planned number.
    """
    names: list[str] = []
    if pattern is not UNSTRUCTURED:
        filled = []
        for name, score in scores.items():
            for rows, count in groups.divide(name, planned[name]):
                names.append(name)
                filled += pattern.fill([torch.zeros_like(score[rows], dtype=torch.bool)], [score[rows]], [count])
        return join(names, filled)
    flat = []
    for name, score in scores.items():
        for rows, count in groups.divide(name, budget(name)):
            part = score[rows].flatten()  # contiguous order, also for channels-last weights
            least = count if names[-1:] == [name] else 1  # the second group is the unknown output
            part[part.topk(least, sorted=False).indices] = torch.inf
            names.append(name)
            flat.append(part)
    (best,) = top_masks([torch.cat(flat)], [sum(planned[name] for name in scores)])
    masks = join(names, best.split([len(part) for part in flat]))
    return {name: mask.view(scores[name].shape) for name, mask in masks.items()}
