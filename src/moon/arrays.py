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
    """Convert `values` to an array of finite numbers with `ndim` dimensions, or raise `ValueError`.

    Args:
        values: A tensor, an array or a sequence.
        name: What to call the values in an error message.
        ndim: The number of dimensions that is expected.

    Returns:
        The values as a NumPy array.

    Raises:
        ValueError: If the values are not numbers, not finite, empty or of another shape.

    Example:
        >>> import torch
        >>> from moon.arrays import to_array
        >>> to_array(torch.tensor([0.5, 1.0]), "scores")
        array([0.5, 1. ], dtype=float32)
    """
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
    """Raise `ValueError` unless two arrays have the same length.

    Args:
        first: An array.
        second: Another array.
        names: What to call both in an error message.

    Example:
        >>> import numpy as np
        >>> from moon.arrays import check_same_length
        >>> check_same_length(np.zeros(3), np.ones(3), "prediction and labels")
    """
    if len(first) != len(second):
        raise ValueError(f"{names} differ in length: {len(first)} and {len(second)}; give one of each per sample")
