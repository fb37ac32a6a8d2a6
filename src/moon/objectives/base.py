"""What a training step minimises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from functools import reduce
from inspect import Parameter, signature
from operator import add
from typing import Any, ClassVar, Self
from weakref import WeakSet

import torch
from torch import Tensor, nn

from moon.evidence import OpenHead

Terms = dict[str, Tensor]
Draw = Callable[[int], tuple[Tensor, Tensor]]  # so many outliers and their classes, by chance, where the model is

_open_models: WeakSet[nn.Module] = WeakSet()  # found to have an open head


def widened(logits: Tensor) -> Tensor:
    """The logits in float32 at least, so that autocast does not reach the loss."""
    return logits.float() if logits.element_size() < 4 else logits


class Objective(nn.Module, ABC):
    """A loss that owns its forward pass: the sum of its terms.

    State that must survive a restart lives in buffers; one that is made with the first batch starts as `torch.empty(0)`
    and takes the shape of what is loaded. Chance comes from torch's own stream, which the loop seeds each epoch.

    A step may be captured in a CUDA graph. What `terms` does on the host then happens once for each `phase`, `epoch` is
    a tensor, and buffers must be changed in place; gradients of anything but the weights are taken inside
    `moon.fast.plain()`. An objective of your own that keeps to this says so: `capturable = True`, in the class itself.
    """

    extra_logits: ClassVar[int] = 0  # outputs it needs beyond the K known classes
    rates: ClassVar[str] = "plain"  # the learning rates that belong to the method
    vote_share: ClassVar[float] = 0.0  # the share of epochs that vote, if that belongs to the method
    capturable: ClassVar[bool] = True  # whether a step may be replayed from a CUDA graph, with `epoch` as a tensor
    parts: ClassVar[Mapping[str, Callable[..., object]]] = {}  # arguments that are objects, and what makes them

    def __init__(self) -> None:
        super().__init__()
        self.register_load_state_dict_pre_hook(_make_room)

    @abstractmethod
    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        """The named terms of the loss of one batch, scalars that add up to it; `epoch` counts from 0."""

    def forward(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Tensor:
        """The loss of one batch, a scalar."""
        return reduce(add, self.terms(model, x, y, epoch=epoch).values())

    def prepare(self, model: nn.Module, x: Tensor, epoch: int) -> None:
        """Make what the first step of a phase makes, if it is not there; called before such a step is captured."""
        for part in self._parts():
            part.prepare(model, x, epoch)

    def phase(self, epoch: int) -> Hashable:
        """What the host decides by the epoch: a step captured in one phase is not replayed in another."""
        return tuple(part.phase(epoch) for part in self._parts())

    def has_come(self, epoch: int | Tensor, first: float) -> bool | Tensor:
        """Whether the epoch `first` is here, or past. Of a tensor's epoch the host knows it where `phase` tells the
        epochs apart (`host` is one of the phase in which a step is captured); otherwise the answer is a tensor."""
        is_decided = type(self).phase is not Objective.phase
        return (getattr(epoch, "host", epoch) if is_decided else epoch) >= first

    def _parts(self) -> list[Objective]:
        """The objectives that it is made of."""
        return [part for part in self.modules() if part is not self and isinstance(part, Objective)]

    @classmethod
    def takes(cls) -> dict[str, Parameter]:
        """What it is made of in a run: the parameters of its constructor, those of a part in the part's place.

        Parameters with a scalar default are its options. Those without are facts of the run: `epochs`, `num_known`,
        `num_features` and, of a set of outliers, `outliers` (a `Draw`) and `outlier_classes`.
        """
        made = dict(signature(cls).parameters)
        for name, make in cls.parts.items():
            del made[name]
            made |= signature(make).parameters
        return made

    @classmethod
    def for_run(cls, **values: Any) -> Self:
        """Made of the facts and options that it takes."""
        parts = {
            name: make(**{key: values.pop(key) for key in signature(make).parameters if key in values})
            for name, make in cls.parts.items()
        }
        return cls(**parts, **values)

    def log(self, epoch: int) -> dict[str, float]:
        """Named values worth a column in the training log."""
        return {}


def _make_room(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Give buffers that are not made yet the shape of the saved ones."""
    for name, buffer in module.named_buffers(recurse=False):
        saved = state.get(prefix + name)
        if saved is not None and buffer.numel() == 0:
            setattr(module, name, torch.empty_like(saved, device=buffer.device))


def check_open(model: nn.Module, objective: Objective) -> None:
    """Refuse a K-way model: its last real class would silently become the unknown."""
    if model not in _open_models:
        if not any(isinstance(module, OpenHead) for module in model.modules()):
            raise ValueError(
                f"{type(objective).__name__} needs K+1 outputs, but {type(model).__name__} has no unknown output; "
                "wrap the model first: model = open_head(model)"
            )
        _open_models.add(model)


class View(nn.Module):
    """A model seen through a change: the same modules and weights, another forward pass.

    Made anew for each batch, so that nothing of the change can outlive it.
    """

    def __init__(self, model: nn.Module, forward: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.change = forward

    def forward(self, x: Tensor) -> Tensor:
        return self.change(x)
