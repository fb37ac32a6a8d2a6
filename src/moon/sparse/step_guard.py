"""Notice that an optimizer updates sparse weights without their topology, which would make them dense."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from moon.sparse.topology import Topology


class StepGuard:
    """A hook that raises before `optimizer.step()` changes anything, unless all topologies of its weights step with it.

    It is called for every optimizer of the process: a second optimizer of the same weights, even one that is built
    later, would fill them as well. It does nothing for other weights.

    Args:
        governing: A function from weights to the topologies that keep them sparse.
    """

    def __init__(self, governing: Callable[[Iterable[Tensor]], Sequence[Topology]]) -> None:
        self.governing = governing
        self._is_watching = False

    def watch(self) -> None:
        """Watch all optimizers from now on."""
        if not self._is_watching:
            register_optimizer_step_pre_hook(self)
            self._is_watching = True

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
