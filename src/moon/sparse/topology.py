"""The interface of topologies, dense or sparse: what takes the place of `optimizer.step()`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Self
from weakref import WeakMethod

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSprop
from torch.utils.hooks import RemovableHandle

from moon.sparse.step_hooks import StepHooks
from moon.sparse.summary import share_of_zeros

# Optimizers that update each weight from its own gradient and state alone, so that gradients of weights that are zero
# have no effect on the others. Adafactor and Muon, among others, mix those of a matrix.
_ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adadelta, Adagrad, RMSprop, ASGD)


class Topology(ABC):
    """Base class of topologies: which weights of a network are zero. Call `step()` instead of `optimizer.step()`.

    Most sparse methods should subclass `SparseTopology`. A direct subclass must set `optimizer`, `masks` and `weights`
    in its constructor; to be used by name in a recipe, the constructor takes the optimizer only. It may override

    - `change`, to change masks or weights in addition to the update, and `is_due`, if it does so only in some steps;
    - `state_dict` and `load_state_dict`, for state of its own;
    - `turnover`, if weights grow;
    - `superpose`, together with `superposes = True`, if models with different masks may be averaged.

    Where other code calls `optimizer.step()`, such as a `torch.amp.GradScaler`, Lightning or Accelerate, call
    `topology.attach()` once: each `optimizer.step()` is then a step of the topology.

    Attributes:
        optimizer: The optimizer of the model.
        masks: Boolean tensors by weight name, True where a weight may be non-zero; empty for a dense network.
        weights: The weights that have a mask, by name.
        matrices: All parameters of the model with two dimensions or more, by name; empty for a dense network.
        steps: The number of steps so far.
        is_stepping: Whether a call of `step` or `update` is in progress.
        is_attached: Whether `optimizer.step()` is a step of the topology, see `attach`.
        frozen_after: The number of steps after which the masks do not change, so that the weights of later epochs can
            be averaged.
        rates: The name of the learning-rate schedule that belongs to the method; None for the objective's.
        vote_share: The fraction of epochs, at the end of a run, that vote; None for the objective's.
        superposes: Whether models with different masks may be averaged, see `superpose`.
        dense_gradient: When the method needs gradients of weights that are zero: "never", "rewiring" (when masks
            change) or "always". None if the density, and with it the cost of a step, changes during training.

    Example:
        >>> import torch
        >>> from moon import Dense, Topology
        >>> model = torch.nn.Linear(8, 4)
        >>> topology: Topology = Dense(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> topology.step()
        >>> topology.steps, topology.is_frozen
        (1, True)
    """

    rates: ClassVar[str | None] = None
    vote_share: ClassVar[float | None] = None
    optimizer: Optimizer
    masks: dict[str, Tensor]
    weights: dict[str, nn.Parameter]
    matrices: Mapping[str, Tensor] = MappingProxyType({})
    steps: int = 0
    is_stepping: bool = False
    superposes: ClassVar[bool] = False
    dense_gradient: ClassVar[Literal["never", "rewiring", "always"] | None] = "never"
    frozen_after: int = 0
    _hooks: StepHooks | None = None
    _handles: Sequence[RemovableHandle] = ()

    def step(self) -> None:
        """Take one training step: update the weights, or change the topology instead. Call it after `backward()`."""
        if self.is_attached:
            self.optimizer.step()  # the hooks do the rest
            return
        with self._stepping():
            if not self._begin():
                self.update()
        self.steps += 1

    def _begin(self) -> bool:
        """Change the masks if a change is due; else leave the optimizer no gradient that it must not use."""
        if self.change():
            return True
        if type(self.optimizer) not in _ELEMENTWISE:
            self._mask_gradients()
        return False

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Context in which the optimizer may step."""
        before, self.is_stepping = self.is_stepping, True
        try:
            yield
        finally:
            self.is_stepping = before

    @property
    def is_attached(self) -> bool:
        return self._hooks is not None

    def attach(self) -> Self:
        """Make every `optimizer.step()` a step of the topology, for code that steps the optimizer itself.

        A step that a `GradScaler` skips does not count. Gradients must be unscaled and accumulated as usual before the
        optimizer steps. From now on `backward` leaves no gradient outside the masks, as after `mask_gradients`, so that
        other code clips by the norm of the sparse network. Does nothing if the topology is attached already.

        Returns:
            The topology.

        Raises:
            ValueError: If another topology is attached to the optimizer, or if the method needs its own `step`.

        Example:
            >>> import torch
            >>> from moon import Static
            >>> model = torch.nn.Linear(8, 4)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> topology = Static(model, optimizer, sparsity=0.5).attach()
            >>> model(torch.ones(2, 8)).sum().backward()
            >>> optimizer.step()
            >>> topology.steps, topology.density()
            (1, 0.5)
        """
        if self._hooks is not None:
            return self
        kind = type(self)
        if kind.step is not Topology.step or kind.update is not Topology.update:
            raise ValueError(f"{kind.__name__} overrides step or update; call its step() instead of optimizer.step()")
        self._hooks = StepHooks(self.optimizer, self._begin, self._after_update)
        mask = WeakMethod(self._mask_gradient)  # the weights may outlive the topology
        self._handles = [
            weight.register_post_accumulate_grad_hook(partial(_call, mask, name))
            for name, weight in self.weights.items()
        ]
        return self

    def detach(self) -> None:
        """Undo `attach`."""
        if self._hooks is not None:
            self._hooks.remove()
            self._hooks = None
            self.release_gradients()

    def release_gradients(self) -> None:
        """Let `backward` leave gradients outside the masks again, for a newer topology of the same weights."""
        for handle in self._handles:
            handle.remove()

    def _after_update(self) -> None:
        self._enforce()
        self.steps += 1

    def _enforce(self) -> None:  # noqa: B027  (a dense network has nothing to restore)
        """Restore what the masks guarantee, after the optimizer changed weights."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Not supported: a `GradScaler` needs the optimizer, which it must unscale only once per step."""
        raise AttributeError(
            "a GradScaler takes the optimizer, not the topology: call topology.attach() once, then "
            "scaler.unscale_(optimizer) and scaler.step(optimizer) as usual"
        )

    @torch.no_grad()
    def mask_gradients(self) -> None:
        """Set gradients outside the masks to zero, for example before their norm is clipped.

        The norm is then that of the gradient of the sparse network. Nothing happens in a step in which the masks may
        change, because the method may need the gradients of all weights.

        Example:
            >>> import torch
            >>> from moon import Static
            >>> model = torch.nn.Linear(8, 4, bias=False)
            >>> topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
            >>> model(torch.ones(1, 8)).sum().backward()
            >>> topology.mask_gradients()
            >>> int(model.weight.grad.sum())
            16
        """
        if not self.is_due:
            self._mask_gradients()

    @torch.no_grad()
    def _mask_gradients(self) -> None:
        for name, mask in self.masks.items():
            if (gradient := self.weights[name].grad) is not None:
                gradient.masked_fill_(~mask, 0.0)

    @torch.no_grad()
    def _mask_gradient(self, name: str, weight: Tensor) -> None:
        """A hook of the weight: its gradient is complete."""
        if not self.is_due and weight.grad is not None:
            weight.grad.masked_fill_(~self.masks[name], 0.0)

    @property
    def is_due(self) -> bool:
        """Whether `change` may do something in this step. A captured step then makes all gradients available."""
        return type(self).change is not Topology.change

    def change(self) -> bool:
        """Change masks or weights, if the method does so in this step.

        It is called once per step, before the update. In a captured step it runs outside the CUDA graph.

        Returns:
            Whether the change replaces the update of this step.
        """
        return False

    def update(self) -> None:
        """Update the weights: `optimizer.step()`, and whatever the masks require after it."""
        with self._stepping():
            self.optimizer.step()
        self._enforce()

    def keep_masks_in(self, memory: Mapping[nn.Parameter, Tensor]) -> None:
        """Move masks into given tensors, which then hold them.

        Args:
            memory: For each weight, a boolean tensor of its shape. Masks of other weights stay where they are.
        """
        for name, mask in self.masks.items():
            if (target := memory.get(self.weights[name])) is not None:
                self.masks[name] = target.copy_(mask)

    @property
    def is_frozen(self) -> bool:
        """Whether the masks have changed for the last time."""
        return self.steps >= self.frozen_after

    def density(self) -> float:
        """The measured density.

        Returns:
            The fraction of weights that a mask keeps or that are not zero, over all weights that have a mask; 1 for a
            dense network.
        """
        if not self.masks:
            return 1.0
        kept = torch.stack([(mask | (self.weights[name] != 0)).sum() for name, mask in self.masks.items()]).sum()
        return int(kept) / sum(mask.numel() for mask in self.masks.values())

    def zeros(self) -> float:
        """The measured fraction of zeros over all `matrices` of the model, also those that stay dense."""
        return share_of_zeros(self.matrices.values())

    def summary(self) -> str:
        """What is sparse: the totals, and a line for each matrix of the model."""
        return f"{type(self).__name__}: no weight is masked"

    def turnover(self) -> float:
        """How many times the network has been replaced so far.

        Returns:
            The number of weights grown so far, divided by the number of weights that the masks keep.
        """
        return 0.0

    def superpose(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make the average of models with different masks sparse again.

        Args:
            weights: The averaged weights by name; changed in place.

        Returns:
            The masks of the average by name; empty if all models have the same masks.
        """
        return {}

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs.

        Returns:
            Tensors and plain values by name.
        """
        return {"steps": self.steps, "settings": self.settings()}

    def settings(self) -> dict[str, Any]:
        """The settings that a state belongs to: it is refused by a topology that has others."""
        return {"topology": type(self).__name__}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        Args:
            state: What `state_dict` returned.

        Raises:
            ValueError: If it is that of a topology with other settings.
        """
        own = self.settings()
        for key, saved in state.get("settings", own).items():
            if saved != own.get(key):
                raise ValueError(
                    f"the state is that of a topology with {key} {saved}, but this one has {own.get(key)}; build it as "
                    "it was when the state was saved, or start anew from the weights alone, whose zeros are kept"
                )
        self.steps = state["steps"]


def _call(method: WeakMethod[Callable[[str, Tensor], None]], name: str, weight: Tensor) -> None:
    """Call a method with the name of a weight while its object exists."""
    if (found := method()) is not None:
        found(name, weight)
