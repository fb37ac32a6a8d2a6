"""Checked numbers: tensors, arrays and lists become NumPy arrays. PyTorch is not imported for this."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Union

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from torch import Tensor

# What metrics and thresholds accept: tensors of any device and type, arrays, nested sequences.
Numbers = Union[ArrayLike, "Tensor"]


def to_array(values: Numbers, name: str, ndim: int = 1) -> NDArray:
    """Convert a tensor, an array or a sequence to an array of finite numbers; a ValueError names what is wrong."""
    torch = sys.modules.get("torch")  # if it is not imported, nothing is a tensor
    if torch is not None and isinstance(values, torch.Tensor):
        tensor: Any = values.detach().cpu()  # pyright: ignore[reportAttributeAccessIssue]
        if tensor.is_floating_point() and tensor.element_size() < 4:  # NumPy has no bfloat16
            tensor = tensor.float()
        values = tensor.numpy()
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be numbers, not {array.dtype}")
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), not shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty; give at least one value")
    invalid = ~np.isfinite(array)
    if invalid.any():
        where = tuple(int(i) for i in np.argwhere(invalid)[0])
        raise ValueError(
            f"{name} has {int(invalid.sum())} value(s) that are not finite, the first at {where}: {array[where]}"
        )
    return array


def check_same_length(first: NDArray, second: NDArray, names: str) -> None:
    """Raise `ValueError` unless two arrays, called `names` in the message, have the same length."""
    if len(first) != len(second):
        raise ValueError(f"{names} differ in length: {len(first)} and {len(second)}; give one of each per sample")
