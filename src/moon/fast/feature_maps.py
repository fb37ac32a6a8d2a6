"""Feature maps in the memory layout of the sparse CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class FeatureMaps:
    """Feature maps as the sparse kernel computes them.

    Torch functions see an ordinary tensor (N, C, H, W), which is created when it is needed.

    Args:
        values: (groups of images, H + 2, C, W + 2, images per group), with a border of zeros.
        images: N; the last group may be incomplete.
        free: A list that `values` is returned to when this object is deleted. Reusing memory is faster than allocating
            it and filling it with zeros.
    """

    def __init__(self, values: Tensor, images: int, free: list[Tensor]) -> None:
        self.values, self.images, self._free = values, images, free

    def __del__(self) -> None:
        self._free.append(self.values)

    @property
    def shape(self) -> torch.Size:
        """(N, C, H, W)."""
        _, rows, channels, columns, _ = self.values.shape
        return torch.Size((self.images, channels, rows - 2, columns - 2))

    @property
    def inner(self) -> Tensor:
        """The values without the border: (groups of images, images per group, C, H, W)."""
        return self.values[:, 1:-1, :, 1:-1].permute(0, 4, 2, 1, 3)

    def tensor(self) -> Tensor:
        """A float32 copy (N, C, H, W)."""
        return (
            torch.empty(self.inner.shape, dtype=torch.float32, device="cpu")
            .copy_(self.inner)
            .flatten(0, 1)[: self.images]
        )

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        to_tensors = partial(tree_map, lambda value: value.tensor() if isinstance(value, FeatureMaps) else value)
        return function(*to_tensors(args), **to_tensors(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.tensor(), name)
