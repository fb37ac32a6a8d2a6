"""Where each parameter is in a flat buffer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BLOCK = 2048  # elements per program of the update kernel; each parameter starts at a multiple of it


class FlatLayout:
    """The places of parameters, all of one device, in flat buffers, which all have the same layout and `size`."""

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._offsets: dict[nn.Parameter, int] = {}
        self._device = parameters[0].device
        self.size = 0
        for parameter in parameters:
            self._offsets[parameter] = self.size
            self.size += -(-parameter.numel() // BLOCK) * BLOCK

    def __contains__(self, parameter: object) -> bool:
        return parameter in self._offsets

    def zeros(self, dtype: torch.dtype) -> Tensor:
        """A new buffer."""
        return torch.zeros(self.size, device=self._device, dtype=dtype)

    def view(self, buffer: Tensor, parameter: nn.Parameter) -> Tensor:
        """The part of a buffer that belongs to the parameter, with its shape and strides."""
        return buffer.as_strided(parameter.shape, parameter.stride(), self._offsets[parameter])

    def blocks(self, parameter: nn.Parameter) -> slice:
        """The blocks of a buffer that belong to the parameter."""
        first = self._offsets[parameter] // BLOCK
        return slice(first, first - (-parameter.numel() // BLOCK))


def have_same_strides(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors have the same sizes and strides; the stride of a dimension of size 1 does not matter."""
    return _significant(a) == _significant(b)


def _significant(tensor: Tensor) -> list[tuple[int, int]]:
    return [(size, stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
