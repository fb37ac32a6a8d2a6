"""The vote for known and unknown, Section 3.3: a uniform average of the last epochs' weights."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from torch import nn
from torch.optim.swa_utils import AveragedModel, update_bn

from moon.sparse import SparseTopology


class WeightVote:
    """Averages the weights of models that share their masks; BatchNorm is re-estimated for the elected one.

    The model's topology, if it has one, is found by itself.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._average: AveragedModel | None = None

    @property
    def voters(self) -> int:
        return 0 if self._average is None else int(self._average.n_averaged)

    def cast(self, model: nn.Module) -> None:
        """Take the model's present weights into the average."""
        for topology in SparseTopology.of(model):
            if not topology.is_frozen:
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
        update_bn(loader, elected, next(elected.parameters()).device)
        return elected.eval()

    def state_dict(self) -> dict[str, Any]:
        return {} if self._average is None else dict(self._average.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._average = AveragedModel(self._model) if state else None
        if self._average is not None:
            self._average.load_state_dict(state)
