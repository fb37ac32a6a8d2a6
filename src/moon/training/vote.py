"""The vote of Section 3.3: a uniform average of the weights of the last epochs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, update_bn

from moon.evidence import split_batch
from moon.sparse import SparseTopology, Topology
from moon.suggest import counted


class WeightVote:
    """A uniform average of the weights of a model after several epochs: the vote of Section 3.3.

    The voters must have the same masks, unless the topology can make an average of different masks sparse again
    (`SupTickets`).

    Args:
        model: The model that is trained.
        topology: Its topology. None: at each call, the topologies created last for the model's weights are looked up.

    Attributes:
        masks: The masks of the elected model, where they differ from those of the topology.

    Example:
        >>> import torch
        >>> from moon import WeightVote
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> vote = WeightVote(model)
        >>> for value in (1.0, 3.0):
        ...     _ = torch.nn.init.constant_(model.weight, value)
        ...     vote.cast(model)
        >>> vote.voters, vote.elect([]).weight.item()
        (2, 2.0)
    """

    def __init__(self, model: nn.Module, topology: Topology | None = None) -> None:
        self._model, self._topology = model, topology
        self._average: AveragedModel | None = None
        self.masks: dict[str, Tensor] = {}

    @property
    def voters(self) -> int:
        """The number of models averaged so far."""
        return 0 if self._average is None else int(self._average.n_averaged)

    def cast(self, model: nn.Module) -> None:
        """Add the current weights of the model to the average.

        Args:
            model: The model.

        Raises:
            ValueError: If its masks may still change.
        """
        for topology in self._topologies(model):
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
        """The average of all votes.

        Args:
            loader: Batches as for `moon.read`, on which the BatchNorm statistics of the average are estimated.

        Returns:
            A new model, in evaluation mode.

        Raises:
            ValueError: If no vote was cast.
        """
        if self._average is None:
            raise ValueError("there are no votes to average; call cast(model) at the end of at least one epoch")
        elected = deepcopy(self._average.module)
        names = {id(weight): name for name, weight in self._model.named_parameters()}
        for topology in self._topologies(self._model):
            weights = topology.weights.items()
            averaged = {name: elected.get_parameter(names[id(w)]) for name, w in weights if id(w) in names}
            self.masks |= topology.superpose(averaged)
        device = next(elected.parameters()).device
        update_bn((split_batch(batch, device)[0] for batch in loader), _Forward(elected))
        return elected.eval()

    def _topologies(self, model: nn.Module) -> list[Topology]:
        return [*SparseTopology.of(model)] if self._topology is None else [self._topology]

    def state_dict(self) -> dict[str, Any]:
        """The state of the average.

        Returns:
            Tensors by name; empty before the first vote.
        """
        return {} if self._average is None else dict(self._average.state_dict())

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state.

        Args:
            state: What `state_dict` returned.
        """
        self._average = AveragedModel(self._model) if state else None
        if self._average is not None:
            self._average.load_state_dict(state)


class _Forward(nn.Module):
    """A model whose input may be a mapping of its keyword arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor | Mapping[str, Tensor]) -> Any:
        return self.model(**x) if isinstance(x, Mapping) else self.model(x)


def check_vote(topology: Topology, steps: int, epochs: int, vote_from: int) -> None:
    """Raise a ValueError if masks may change after the first vote, which follows epoch `vote_from`, counted from 0."""
    if topology.superposes or (vote_from + 1) * steps >= topology.frozen_after:
        return
    votes = max(epochs + 1 - -(-topology.frozen_after // steps), 0)
    when = f"{counted(vote_from + 1, 'epoch')} of {counted(steps, 'step')}"
    allowed = f"at most {counted(votes, 'epoch')}" if votes else "no epoch"
    raise ValueError(
        f"the first vote is cast after {when}, but the masks change until step {topology.frozen_after}; let "
        f"{allowed} vote, or end the DropSchedule earlier (a smaller t_end)"
    )
