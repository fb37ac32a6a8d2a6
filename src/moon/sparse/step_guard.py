"""Detect that an optimizer updates sparse weights without their topology, which would make them dense."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from moon.sparse.topology import Topology


class StepGuard:
    """A hook that raises before `optimizer.step()` changes anything, unless all topologies of its weights step with it.

    It is called for every optimizer of the process: a second optimizer of the same weights, even one that is built
    later, would fill them as well. It does nothing for other weights. It knows a topology while that is referenced
    elsewhere.
    """

    def __init__(self) -> None:
        self._weights_of: WeakKeyDictionary[Topology, list[Tensor]] = WeakKeyDictionary()  # in the order of creation
        self._is_watching = False

    def watch(self, topology: Topology, weights: list[Tensor]) -> None:
        """Watch over the weights of a topology, in all optimizers."""
        for older in self.governing(weights):
            older.release_gradients()
        self._weights_of[topology] = weights
        if not self._is_watching:
            register_optimizer_step_pre_hook(self)
            self._is_watching = True

    def forget(self, topology: Topology) -> None:
        """Let optimizers update the weights of a topology without it."""
        self._weights_of.pop(topology, None)

    def governing(self, weights: Iterable[Tensor]) -> list[Topology]:
        """The newest topology of each of these weights, the oldest first."""
        topologies = list(self._weights_of.items())
        newest = {id(weight): topology for topology, own in topologies for weight in own}
        found = {newest[id(weight)] for weight in weights if id(weight) in newest}
        return [topology for topology, _ in topologies if topology in found]

    def __call__(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        weights = (weight for group in optimizer.param_groups for weight in group["params"])
        topologies = self.governing(weights)
        others = [topology for topology in topologies if not _steps(topology, optimizer)]
        if not others:
            return
        name = type(others[-1]).__name__
        if len(others) < len(topologies):
            raise RuntimeError(
                f"the optimizer also updates the weights of {name}, another topology, and this step would fill those "
                "that it keeps at zero; give each topology its own optimizer, or attach() one of two and call step() "
                "of the other"
            )
        raise RuntimeError(
            f"optimizer.step() would fill the weights that {name}, the newest topology of this model, keeps at zero; "
            "call topology.step() instead, or topology.attach() once if other code steps the optimizer (GradScaler, "
            "Lightning, Accelerate). To train without masks, delete the topology first"
        )


def _steps(topology: Topology, optimizer: Optimizer) -> bool:
    """Whether a step of the optimizer is one of the topology."""
    return topology.is_stepping or (topology.is_attached and topology.optimizer is optimizer)


GUARD = StepGuard()
