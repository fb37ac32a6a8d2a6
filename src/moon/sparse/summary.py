"""What is sparse in a model: a line for each weight matrix, and the share of zeros over all of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from moon.suggest import counted


def matrices_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters of a model that have two dimensions or more, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.dim() > 1}


def share_of_zeros(matrices: Iterable[Tensor]) -> float:
    """The fraction of numbers that are zero; 0 if there are none."""
    found = [*matrices]
    kept = torch.stack([weight.count_nonzero() for weight in found]).sum() if found else 0
    return 1 - int(kept) / max(1, sum(weight.numel() for weight in found))


def summarize(name: str, matrices: Mapping[str, Tensor], planned: Mapping[str, int]) -> str:
    """What a topology keeps of each matrix, as text: the totals, then one line for each matrix."""
    sizes = {key: matrix.numel() for key, matrix in matrices.items()}
    kept = {**sizes, **planned}
    sparse = [key for key in sizes if kept[key] < sizes[key]]
    inside, total = sum(sizes[key] for key in sparse), sum(sizes.values())
    zeros = inside - sum(kept[key] for key in sparse)
    layers = counted(len(sparse), "sparse layer")
    lines = [
        f"{name}: {zeros / inside:.1%} of {counted(inside, 'weight')} in {layers} are zero",
        f"  {zeros / total:.1%} of all {counted(total, 'number')} in the matrices of the model",
    ]
    shapes = {key: "x".join(map(str, matrix.shape)) for key, matrix in matrices.items()}
    wide, long = max(map(len, sizes)), max(map(len, shapes.values()))
    for key, shape in shapes.items():
        state = f"{kept[key] / sizes[key]:6.1%} kept" if key in sparse else " dense"
        note = "" if key in planned else " (not in a layer that can be sparse)"
        lines.append(f"  {key:{wide}}  {shape:>{long}}  {state}{note}")
    return "\n".join(lines)
