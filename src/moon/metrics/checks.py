"""The door of the metrics: whatever holds numbers becomes a checked NumPy array."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


def numbers(values, name: str, ndim: int = 1) -> NDArray:
    """`values` (tensor, array or list) as a non-empty, finite array of `ndim` dimensions."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        if values.is_floating_point() and values.element_size() < 4:  # NumPy has no bfloat16
            values = values.float()
        values = values.numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, not {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), not shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty; a metric of nothing is not a number")
    bad = ~np.isfinite(array)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name} has {int(bad.sum())} value(s) that are not finite, the first at {where}: {array[where]}"
        )
    return array


def same_length(first: NDArray, second: NDArray, names: str) -> None:
    """Refuse two arrays that do not describe the same samples."""
    if len(first) != len(second):
        raise ValueError(f"{names} differ in length: {len(first)} and {len(second)}; give one of each a sample")
