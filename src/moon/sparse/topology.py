"""Which weights exist: the masks, the invariant that holds on them, and the one way they change."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, Literal, cast
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.fast import top
from moon.seeds import derive, generator, hashed_uniform
from moon.sparse.allocation import Allocation, Shapes, erk
from moon.sparse.pattern import ANYWHERE, Pattern
from moon.sparse.schedule import DropSchedule

_LAYERS = (nn.Linear, nn.modules.conv._ConvNd)


def sparse_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """The weights that may be sparse: of Linear, convolution and attention layers; no bias, norm or embedding."""
    weights: dict[str, nn.Parameter] = {}
    for prefix, module in model.named_modules():
        if isinstance(module, _LAYERS):
            own: dict[str, nn.Parameter | None] = {"weight": cast(nn.Parameter, module.weight)}
        elif isinstance(module, nn.MultiheadAttention):
            names = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
            own = {name: getattr(module, name) for name in names}
        else:
            continue
        for name, weight in own.items():
            if weight is not None and all(weight is not other for other in weights.values()):
                weights[f"{prefix}.{name}" if prefix else name] = weight
    return weights


class Topology(ABC):
    """What stands in for `optimizer.step()`, dense or sparse."""

    rates: ClassVar[str | None] = None  # the learning rates and the share of epochs that vote, where they belong to
    vote_share: ClassVar[float | None] = None  # the topology; None: the objective's
    optimizer: Optimizer
    masks: dict[str, Tensor]
    weights: dict[str, nn.Parameter]  # those that have a mask
    steps: int = 0  # taken so far
    superposes: ClassVar[bool] = False  # whether voters may have different masks
    # When it asks for gradients of weights that do not exist; None: its density changes, so no step is like another.
    dense_gradient: ClassVar[Literal["never", "rewiring", "always"] | None] = "never"
    frozen_after: int = 0  # steps; the masks change no more, so weights of different epochs may be averaged

    def step(self) -> None:
        """One training step: the optimizer's, or a change of the topology in its place."""
        if not self.change():
            self.update()
        self.steps += 1

    @property
    def is_due(self) -> bool:
        """Whether `change` may do something in this step; a captured step gets the gradients ready for it then."""
        return type(self).change is not Topology.change

    def change(self) -> bool:
        """What the topology does in this step besides the update; whether it has taken the update's place.

        A step that is replayed from a CUDA graph calls this, too, outside of the graph.
        """
        return False

    def update(self) -> None:
        """The optimizer's step, and what the topology asks of the weights after it."""
        self.optimizer.step()

    def keep_masks_in(self, memory: Mapping[nn.Parameter, Tensor]) -> None:
        """Have the masks of these weights, as they are, in these tensors from now on."""
        for name, mask in self.masks.items():
            if (place := memory.get(self.weights[name])) is not None:
                self.masks[name] = place.copy_(mask)

    @property
    def is_frozen(self) -> bool:
        return self.steps >= self.frozen_after

    def density(self) -> float:
        """The measured share of weights that exist, over all that may be sparse; 1 for a dense network."""
        if not self.masks:
            return 1.0
        exist = torch.stack([mask.sum() for mask in self.masks.values()]).sum()
        return int(exist) / sum(mask.numel() for mask in self.masks.values())

    def turnover(self) -> float:
        """How many times over the network has been replaced so far: connections grown anew / connections."""
        return 0.0

    def superpose(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Make the average of voters with different masks sparse again, and give its masks; none if they share one."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


class SparseTopology(Topology):
    """A planned number of weights of each layer exists; a subclass says which to grow when some are replaced.

    Invariant: outside the masks the weight is exactly +0.0 and so is every optimizer state of its shape, whatever
    gradient, momentum or weight decay did in the step. New connections therefore start from zero, and a connection
    that is dropped and grown in the same step keeps its value and its state.

    `dense` names weights to leave dense beside those that the allocation makes so; the sparsity is that of the others.
    `pattern` says where in a layer connections may be (`NOfM(2, 4)`).
    """

    rewires: ClassVar[bool] = True  # whether it takes a schedule
    takes_pattern: ClassVar[bool] = True
    _alive: ClassVar[WeakSet[SparseTopology]] = WeakSet()

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float,
        schedule: DropSchedule | None = None,
        allocation: Allocation = erk,
        dense: Collection[str] = (),
        seed: int = 0,
        pattern: Pattern = ANYWHERE,
    ) -> None:
        if self.rewires != (schedule is not None):
            raise ValueError(
                f"{type(self).__name__} needs to know when to rewire: schedule=DropSchedule(t_end=steps)"
                if self.rewires
                else f"{type(self).__name__} never rewires; give it no schedule"
            )
        self.check_pattern(pattern)
        schedule = schedule or DropSchedule(t_end=0)
        weights = sparse_weights(model)
        if unknown := set(dense) - weights.keys():
            raise ValueError(f"no weight is called {sorted(unknown)}; the weights are {sorted(weights)}")
        free = {name: weight for name, weight in weights.items() if name not in dense}
        updated = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if missing := [name for name, weight in free.items() if id(weight) not in updated]:
            raise ValueError(
                f"the optimizer does not update {missing}; build it from model.parameters() after every change "
                "of the model (open_head, .to()), or name frozen weights in `dense`"
            )
        self.optimizer, self.schedule, self.seed, self.pattern = optimizer, schedule, seed, pattern
        self.sparsity = sparsity
        self.frozen_after = schedule.frozen_after
        self.key = derive("grow", seed)
        self.weights = weights
        shapes = {name: tuple(weight.shape) for name, weight in free.items()}
        self.planned = self._counts(pattern.densities(shapes, sparsity, allocation))  # connections, in the end
        self._prepare(shapes, allocation)
        self.counts = {name: self.count(name) for name in weights}  # connections at present
        self.masks = {}
        for index, (name, weight) in enumerate(weights.items()):
            chance = torch.rand(weight.shape, generator=generator("mask", seed, index))
            # Exactly so many connections, uniformly at random, laid out in memory as the weight is.
            none = torch.zeros(weight.shape, dtype=torch.bool)
            (mask,) = pattern.fill([none], [chance], [self.counts[name]])
            self.masks[name] = torch.empty_like(weight, dtype=torch.bool).copy_(mask)
        # What a step must set to zero; dense layers have nothing to set.
        self._pruned = {n: ~mask for n, mask in self.masks.items() if self.planned[n] < mask.numel()}
        device = next(iter(weights.values())).device
        self._grown = torch.zeros((), dtype=torch.int64, device=device)
        self._enforce()
        self._alive.add(self)

    def _counts(self, densities: dict[str, float]) -> dict[str, int]:
        """Connections of each layer at these densities, one at least; layers that are not named are dense."""
        return {
            name: min(weight.numel(), max(1, round(densities.get(name, 1.0) * weight.numel())))
            for name, weight in self.weights.items()
        }

    def _prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        """What a subclass needs before the first masks are drawn."""

    @classmethod
    def check_pattern(cls, pattern: Pattern) -> None:
        """Refuse a pattern where the number of connections changes."""
        if pattern is not ANYWHERE and not cls.takes_pattern:
            raise ValueError(f"{cls.__name__} prunes step by step, but a pattern of n of m fixes the number")

    @classmethod
    def of(cls, model: nn.Module) -> list[SparseTopology]:
        """The topologies in use that govern weights of this model, or of the model it wraps."""
        weights = {id(weight) for weight in model.parameters()}
        return [t for t in cls._alive if any(id(weight) in weights for weight in t.weights.values())]

    @abstractmethod
    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        """How much each absent connection deserves to grow; the highest do."""

    def keep_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        """How much each connection deserves to stay, at least 0; the lowest are dropped."""
        return weight.abs()

    def count(self, name: str) -> int:
        """How many connections this layer has from the present step on."""
        return self.planned[name]

    @property
    def is_due(self) -> bool:
        has_its_own = type(self).change is not SparseTopology.change
        return has_its_own or self.schedule.is_due(self.steps)

    def change(self) -> bool:
        """The replacement of connections when it is due."""
        if not self.schedule.is_due(self.steps):
            return False
        self._rewire(self.schedule.share(self.steps))
        self._enforce()
        return True

    def update(self) -> None:
        super().update()
        self._enforce()

    def turnover(self) -> float:
        return int(self._grown) / sum(self.counts.values())

    @torch.no_grad()
    def _rewire(self, share: float) -> None:
        """In each sparse layer drop the weakest `share` of the connections and grow as many where it pays."""
        names, drops, strengths, growths = [], [], [], []
        for index, name in enumerate(self.weights):
            count = self.count(name)
            drop = int(share * count)
            if name not in self._pruned or (drop == 0 and count == self.counts[name]):
                continue
            weight, grad = self.weights[name], self._gradient(name)
            self.key = derive("grow", self.seed, index, self.steps)  # the same on resuming, on every rank
            names.append(name)
            drops.append(drop)
            strengths.append(torch.where(self.masks[name], self.keep_score(weight, grad), -1.0))
            growths.append(self.grow_score(weight, grad) if drop else torch.zeros_like(weight))
        # All layers at once: a GPU is asked seldom for much.
        kept = top(strengths, [self.count(name) - drop for name, drop in zip(names, drops, strict=True)])
        for name, mask in zip(names, self.pattern.fill(kept, growths, drops), strict=True):
            self._change(name, mask)

    def _best(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """Masks of the best over all these layers at once: as many in all as planned, one at least in each.

        Under a pattern each layer keeps its own best.
        """
        if self.pattern is not ANYWHERE:
            empty = [torch.zeros_like(score, dtype=torch.bool) for score in scores.values()]
            masks = self.pattern.fill(empty, list(scores.values()), [self.planned[name] for name in scores])
            return dict(zip(scores, masks, strict=True))
        flat = [score.flatten() for score in scores.values()]  # of channels-last weights a copy, in the usual order
        for score in flat:
            score[score.argmax()] = torch.inf
        (best,) = top([torch.cat(flat)], [sum(self.planned[name] for name in scores)])
        parts = best.split([len(score) for score in flat])
        return {name: part.view(scores[name].shape) for name, part in zip(scores, parts, strict=True)}

    def _gradient(self, name: str) -> Tensor:
        grad = self.weights[name].grad
        if grad is None:
            raise ValueError(f"'{name}' has no gradient; call loss.backward() before topology.step()")
        return grad

    def _change(self, name: str, new: Tensor) -> None:
        """Put a new mask in place of the present one."""
        mask = self.masks[name]
        self._grown += (new & ~mask).sum()
        mask.copy_(new)
        torch.logical_not(mask, out=self._pruned[name])
        self.counts[name] = self.count(name)

    def _random(self, weight: Tensor) -> Tensor:
        """Scores uniform in [0, 1), which depend on seed, layer and step alone."""
        return hashed_uniform(self.key, weight.numel(), weight.device).view(weight.shape)

    @torch.no_grad()
    def _enforce(self) -> None:
        """Restore the invariant; selecting, not multiplying, leaves +0.0 and stops a NaN."""
        for name, pruned in self._pruned.items():
            weight = self.weights[name]
            weight.masked_fill_(pruned, 0.0)
            for value in self.optimizer.state.get(weight, {}).values():
                if isinstance(value, Tensor) and value.shape == weight.shape:
                    value.masked_fill_(pruned, 0.0)

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"grown": self._grown, "masks": dict(self.masks)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for name, mask in self.masks.items():
            if name not in state["masks"] or state["masks"][name].shape != mask.shape:
                raise ValueError(f"the saved masks have no '{name}' of shape {tuple(mask.shape)}")
            mask.copy_(state["masks"][name])
            self.counts[name] = int(mask.sum())
            if name in self._pruned:
                self._pruned[name].copy_(~mask)
        self._grown.copy_(state["grown"])
        self._enforce()
