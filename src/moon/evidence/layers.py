"""What inner layers make of an input: mean and standard deviation of each channel of the outputs of convolutions."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

LAYERS = 8  # at most, evenly spaced from the first to the last


def chosen(count: int) -> list[int]:
    """Which of `count` calls of convolutions are looked at: the first, the last and those evenly between them."""
    if count <= LAYERS:
        return list(range(count))
    return [round(place * (count - 1) / (LAYERS - 1)) for place in range(LAYERS)]


def moments(x: Tensor) -> Tensor:
    """Mean and standard deviation of each channel of feature maps (N, C, H, W), of shape (N, 2C)."""
    x = x.float()
    return torch.cat([x.mean((2, 3)), x.flatten(2).std(2, correction=0)], 1)


def has_convolutions(model: nn.Module) -> bool:
    """Whether there are layers to look at."""
    return any(isinstance(module, nn.Conv2d) for module in model.modules())


class LayerRecording:
    """Context in which the outputs of a model's convolutions are summarised."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._handles: list[Any] = []
        self._found: list[Tensor] = []

    def __enter__(self) -> Self:
        for module in self._model.modules():
            if isinstance(module, nn.Conv2d):
                self._handles.append(module.register_forward_hook(self._record))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()

    def _record(self, module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        self._found.append(moments(output.detach()))

    def start(self) -> None:
        """Forget the forward passes before the one that matters."""
        self._found = []

    def found(self, features: Tensor) -> tuple[Tensor, tuple[int, ...]]:
        """What was recorded since `start`, side by side, and how wide each part is; there may be no convolution.

        A model whose convolutions are computed elsewhere says it itself, as `last_layers`.
        """
        if (own := getattr(self._model, "last_layers", None)) is not None:
            return own
        parts = [self._found[place] for place in chosen(len(self._found))]
        return torch.cat([features[:, :0].float(), *parts], 1), tuple(part.shape[1] for part in parts)
