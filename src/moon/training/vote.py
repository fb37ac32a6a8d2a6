"""The vote for known and unknown, Section 3.3: a uniform average of the last epochs' weights."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from moon.sparse import SparseTopology


class WeightVote:
    """Averages the weights of models that share their masks; BatchNorm is re-estimated for the elected one.

    The model's topology, if it has one, is found by itself. Where it superposes, voters may have different masks, and
    the average is made as sparse as they are before BatchNorm is measured; `masks` are then the elected one's.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._average: AveragedModel | None = None
        self.masks: dict[str, Tensor] = {}

    @property
    def voters(self) -> int:
        return 0 if self._average is None else int(self._average.n_averaged)

    def cast(self, model: nn.Module) -> None:
        """Take the model's present weights into the average."""
        for topology in SparseTopology.of(model):
            if not (topology.is_frozen or topology.superposes):
                raise ValueError(
                    f"the vote was cast in step {topology.steps}, but the masks change until step "
                    f"{topology.frozen_after}; averaging different masks would fill in pruned weights. "
                    "Cast later, or end the DropSchedule earlier (a smaller t_end)"
                )
        if self._average is None:
            self._average = AveragedModel(model)
        self._average.update_parameters(model)

    def elect(self, loader: Iterable) -> nn.Module:
        """The average of all votes, in evaluation mode; BatchNorm is measured on `loader` ((x, y) or x)."""
        if self._average is None:
            raise ValueError("nobody has voted; call cast(model) at the end of at least one epoch")
        elected = deepcopy(self._average.module)
        own = {id(weight): name for name, weight in self._model.named_parameters()}
        for topology in SparseTopology.of(self._model):
            averaged = {name: elected.get_parameter(own[id(w)]) for name, w in topology.weights.items() if id(w) in own}
            self.masks |= topology.superpose(averaged)
        update_bn(loader, elected, next(elected.parameters()).device)
        return elected.eval()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._average is None else dict(self._average.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = AveragedModel(self._model) if state else None
        if self._average is not None:
            self._average.load_state_dict(state)
