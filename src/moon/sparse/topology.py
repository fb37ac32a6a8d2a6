"""The interface of topologies, dense or sparse: what takes the place of `optimizer.step()`."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Topology(ABC):
    """Base class of topologies: which weights of a network are zero. Call `step()` instead of `optimizer.step()`.

    Most sparse methods should subclass `SparseTopology`. A direct subclass must set `optimizer`, `masks` and `weights`
    in its constructor; to be used by name in a recipe, the constructor takes the optimizer only. It may override

    - `change`, to change masks or weights in addition to the update, and `is_due`, if it does so only in some steps;
    - `state_dict` and `load_state_dict`, for state of its own;
    - `turnover`, if weights grow;
    - `superpose`, together with `superposes = True`, if models with different masks may be averaged.

    With a `torch.amp.GradScaler`, call `scaler.step(topology)`, and `scaler.unscale_(topology)` if gradients are
    clipped. Give the topology to both: after `unscale_(optimizer)`, `step(topology)` would unscale a second time.

    Attributes:
        optimizer: The optimizer of the model.
        masks: Boolean tensors by weight name, True where a weight may be non-zero; empty for a dense network.
        weights: The weights that have a mask, by name.
        steps: The number of steps so far.
        is_stepping: Whether a call of `step` or `update` is in progress.
        frozen_after: The number of steps after which the masks do not change, so that the weights of later epochs can
            be averaged.
        rates: The name of the learning-rate schedule that belongs to the method; None for the objective's.
        vote_share: The fraction of epochs, at the end of a run, that vote; None for the objective's.
        superposes: Whether models with different masks may be averaged, see `superpose`.
        dense_gradient: When the method needs gradients of weights that are zero: "never", when "rewiring", or "always".
            None if the density, and with it the cost of a step, changes during training.

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
    steps: int = 0
    is_stepping: bool = False
    superposes: ClassVar[bool] = False
    dense_gradient: ClassVar[Literal["never", "rewiring", "always"] | None] = "never"
    frozen_after: int = 0

    def step(self) -> None:
        """Take one training step: update the weights, or change the topology instead. Call it after `backward()`."""
        with self._stepping():
            if not self.change():
                self.update()
        self.steps += 1

    @contextmanager
    def _stepping(self) -> Iterator[None]:
        """Context in which the optimizer may step."""
        before, self.is_stepping = self.is_stepping, True
        try:
            yield
        finally:
            self.is_stepping = before

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """The parameter groups of the optimizer, which `GradScaler` needs for `step(topology)`."""
        return self.optimizer.param_groups

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
        self.optimizer.step()

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
            Tensors and numbers by name.
        """
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        Args:
            state: What `state_dict` returned.
        """
        self.steps = state["steps"]
