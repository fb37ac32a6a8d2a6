"""What callbacks for the training loops of others share: masks, vote, BatchNorm, several processes, and their state.

A callback builds a `SparseTraining` from the arguments of its user and calls, from the hooks of the foreign loop,

- `begin(model, optimizer, steps=..., epochs=...)` when model and optimizer are complete and on their device, and
  weights and optimizer state of a checkpoint are loaded. From then on `optimizer.step()` is a step of the topology
  (`Topology.attach`), whatever code calls it; nothing else has to be done per step;
- `average(objective)` after each batch if several processes train as one;
- `end_epoch(epoch)` after each epoch, before a checkpoint is written;
- `record(epoch)` for the log;
- `elect(batches)` after the last epoch: the vote replaces the weights, in place;
- `end()` when the loop is left, for whatever reason;
- `state_dict()` for each checkpoint, and `load_state_dict(state)` before `begin`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any, Literal, cast

import torch
from torch import nn
from torch.optim import Optimizer

from moon.integrations.tensors import average_over_processes, filled, kept, norm_buffers
from moon.objectives import AutoWeight, Objective
from moon.recipe.registry import pick
from moon.seeds import derive
from moon.sparse import DropSchedule, SparseTopology, Topology
from moon.sparse.pattern import UNSTRUCTURED, Pattern
from moon.sparse.schedule import FEW_CHANGES
from moon.sparse.step_guard import GUARD
from moon.sparse.weights import sparse_weights
from moon.training.plain import moving_averages
from moon.training.vote import WeightVote, check_vote

_log = logging.getLogger(__name__)


class SparseTraining:
    """A topology and a vote for the training loop of another library.

    Args:
        topology: The name of a topology, as for `moon train`, or its class.
        sparsity: The fraction of weights that are zero, in [0, 1). None: 0.9, or 0 if the topology is dense.
        schedule: When the masks change. None: every `delta_t` steps in the first part of the run, `t_end_share`.
        t_end_share: The fraction of the run in which the masks change.
        delta_t: The number of optimizer steps between two changes. None: 100, or fewer in a short run.
        fraction: The initial fraction of non-zero weights that is replaced.
        allocation: How the sparsity is divided among layers: "erk" or "uniform", or a function.
        dense: Names of weights to leave dense. Weights of objectives always are.
        pattern: Where in a layer the non-zero weights may be: anywhere, or `NOfM(2, 4)`.
        seed: The seed of the masks.
        first_mask: Which weights of a layer the first mask keeps: "random" ones, or those of largest "magnitude", for
            a model that was trained before.
        vote_share: The fraction of epochs, at the end of the run, whose weights are averaged; 0 for none. None: that
            of the topology or the objective, 0.2 for MOON.

    Attributes:
        topology: The topology; None before `begin`.
        vote: The vote; None before `begin`, or if there is none.
        model: The network; None before `begin`.
    """

    def __init__(
        self,
        topology: str | type[Topology] = "rigl",
        sparsity: float | None = None,
        *,
        schedule: DropSchedule | None = None,
        t_end_share: float = 0.7,
        delta_t: int | None = None,
        fraction: float = 0.3,
        allocation: Any = "erk",
        dense: Collection[str] = (),
        pattern: Pattern = UNSTRUCTURED,
        seed: int = 0,
        first_mask: Literal["random", "magnitude"] = "random",
        vote_share: float | None = None,
    ) -> None:
        self.kind: type[Topology] = pick("topology", topology) if isinstance(topology, str) else topology
        self.allocation = pick("allocation", allocation) if isinstance(allocation, str) else allocation
        if not (is_sparse := issubclass(self.kind, SparseTopology)) and sparsity:
            raise ValueError(f"a dense network has no sparsity ({sparsity:g} was given); choose a sparse topology")
        self.sparsity = sparsity if sparsity is not None else 0.9 if is_sparse else 0.0
        if not 0 <= t_end_share <= 1 or not 0 <= (vote_share or 0) <= 1:
            raise ValueError(f"t_end_share={t_end_share} and vote_share={vote_share} must be in [0, 1]")
        self.schedule, self.dense, self.pattern, self.seed = schedule, dense, pattern, seed
        self.t_end_share, self.delta_t, self.fraction, self.vote_share = t_end_share, delta_t, fraction, vote_share
        self.first_mask: Literal["random", "magnitude"] = first_mask
        self.topology: Topology | None = None
        self.vote: WeightVote | None = None
        self.vote_from: int | None = None
        self.model: nn.Module | None = None
        self._objectives: list[Objective] = []
        self._loaded: dict[str, Any] = {}
        self._length: dict[str, int] = {}
        self._epochs_ended = 0

    @property
    def has_state(self) -> bool:
        """Whether `begin` will restore a state."""
        return bool(self._loaded)

    def begin(
        self, model: nn.Module, optimizer: Optimizer, *, steps: int, epochs: int, within: nn.Module | None = None
    ) -> Topology:
        """Create topology and vote, attach them to the optimizer, and restore their state if one was loaded.

        `steps` (of the optimizer) and `epochs` count the whole run. `within` is the module that contains the
        objectives; None: the model itself. Raises a ValueError if the masks would never change, or change after the
        first vote, or if the loaded state is that of a run of another length or of other weights.
        """
        self.model, self.vote, self.vote_from = model, None, None
        self._length = {"steps": steps, "epochs": epochs}
        modules = [*(within or model).modules()]
        self._objectives = [module for module in modules if isinstance(module, Objective)]
        for weight in modules:
            if isinstance(weight, AutoWeight) and weight.epochs != epochs:
                _log.warning(
                    "AutoWeight was built for %d epochs, but the run has %d; its weight reaches the final value in "
                    "epoch %d",
                    *(weight.epochs, epochs, weight.epochs),
                )
        shares = (self.vote_share, self.kind.vote_share, *(objective.vote_share for objective in self._objectives), 0.0)
        share = next(share for share in shares if share is not None)
        state, self._loaded = self._loaded, {}
        if state:
            self._check(state, model, has_vote=share > 0)
            # A new topology zeroes what is outside of its first masks; these weights have others.
            with kept(model, optimizer):
                self.topology = self._build(model, optimizer, steps)
            self.topology.load_state_dict(state["topology"])
        else:
            self.topology = self._build(model, optimizer, steps)
        self.topology.attach()
        if share:
            self.vote_from = epochs - max(1, round(share * epochs))
            check_vote(self.topology, steps // epochs, epochs, self.vote_from)
            self.vote = WeightVote(model, self.topology)
            self.vote.load_state_dict(state.get("vote", {}))
        self._epochs_ended = state.get("epochs_ended", 0)
        return self.topology

    def _check(self, state: dict[str, Any], model: nn.Module, has_vote: bool) -> None:
        """Raise a ValueError if a state is that of a run of another length, or of other weights."""
        saved = {key: state[key] for key in self._length}
        is_planned = has_vote or (getattr(self.kind, "rewires", False) and self.schedule is None)
        if saved != self._length and is_planned:
            raise ValueError(
                "the checkpoint is that of a run of {steps} steps in {epochs} epochs, ".format(**saved)
                + "but this run has {steps} steps in {epochs}; ".format(**self._length)
                + "masks and votes depend on the length of a run, so resume with the same length, or start again in "
                "another folder"
            )
        if names := filled(sparse_weights(model), state["topology"].get("masks", {})):
            raise ValueError(
                f"'{names[0]}' is non-zero outside its saved mask: masks and weights are of different checkpoints; "
                "load both from the same one, or start a new run"
            )

    def _build(self, model: nn.Module, optimizer: Optimizer, steps: int) -> Topology:
        kind = self.kind
        if not issubclass(kind, SparseTopology):
            return cast(Any, kind)(optimizer)
        schedule = self.schedule
        if schedule is None and kind.rewires:
            t_end = int(self.t_end_share * steps)
            interval = min(100, max(1, (t_end - 1) // FEW_CHANGES)) if self.delta_t is None else self.delta_t
            schedule = DropSchedule(t_end, interval, self.fraction)
        weights = sparse_weights(model)
        own = {id(weight) for objective in self._objectives for weight in objective.parameters()}
        dense = {*self.dense, *(name for name, weight in weights.items() if id(weight) in own)}
        # Classes of other packages may not have the argument; its default is theirs.
        first: dict[str, Any] = {} if self.first_mask == "random" else {"first_mask": self.first_mask}
        return kind(model, optimizer, self.sparsity, schedule, self.allocation, dense, self.seed, self.pattern, **first)

    def end_epoch(self, epoch: int) -> None:
        """Cast a vote, if the epoch (counted from 0) has one. A second call for the same epoch does nothing."""
        if epoch < self._epochs_ended:
            return
        self._epochs_ended = epoch + 1
        if self.vote is not None and self.vote_from is not None and epoch >= self.vote_from:
            assert self.model is not None
            self.vote.cast(self.model)

    def record(self, epoch: int) -> dict[str, float]:
        """Numbers for the log: density, zeros over all matrices, turnover, and those of the objectives in the model."""
        assert self.topology is not None
        topology = self.topology
        values = {"density": topology.density(), "zeros": topology.zeros(), "turnover": topology.turnover()}
        for objective in self._objectives:
            values |= objective.log(epoch)
        return values

    def elect(self, batches: Iterable) -> int:
        """Replace the weights of the model by the average of the votes, and estimate its BatchNorm statistics again.

        The batches are as for `moon.read`. Their order may be random; it is then determined by the seed. With several
        processes, each gives its own batches, and the statistics are averaged. Returns the number of votes; if it is 0,
        nothing was changed, and a warning is logged. Raises a ValueError if the votes had different masks; the model
        then keeps the weights of the last step.
        """
        if self.vote is None or self.model is None or self.topology is None:
            return 0
        if not self.vote.voters:
            _log.warning("training ended before the first vote; the weights are those of the last step")
            return 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derive("training", self.seed))
            elected = self.vote.elect(batches)
        names = [] if self.topology.superposes else filled(sparse_weights(elected), self.topology.masks)
        if names:
            raise ValueError(
                f"the average of the votes is non-zero outside the mask of '{names[0]}', so they had different masks: "
                "was the run resumed with another schedule or vote_share? The model keeps the weights of the last step"
            )
        statistics = norm_buffers(elected)
        average_over_processes(statistics.values())
        for name, weight in self.model.named_parameters():
            weight.data.copy_(elected.get_parameter(name))
        for name, buffer in norm_buffers(self.model).items():
            buffer.copy_(statistics[name])
        return self.vote.voters

    def average(self, objective: nn.Module) -> None:
        """Average the moving averages in an objective, such as beta of `AutoWeight`, over all processes."""
        average_over_processes(moving_averages(objective))

    def end(self) -> None:
        """Release the optimizer: it can be stepped without the topology, and the masks are no longer enforced."""
        if self.topology is not None:
            self.topology.detach()
            GUARD.forget(self.topology)

    def state_dict(self) -> dict[str, Any]:
        """The state that a checkpoint needs; empty before `begin`."""
        if self.topology is None:
            return self._loaded
        vote = {} if self.vote is None else self.vote.state_dict()
        progress = {"epochs_ended": self._epochs_ended, **self._length}
        return {"topology": self.topology.state_dict(), "vote": vote, **progress}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Keep a state for `begin`, which restores it."""
        self._loaded = state
