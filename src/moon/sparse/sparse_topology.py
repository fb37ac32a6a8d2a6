"""The base class of sparse topologies: how many weights each layer keeps, which ones, and when they change."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar, get_args

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from moon.fast import top_masks
from moon.seeds import derive, hashed_uniform
from moon.sparse.allocation import Allocation, Shapes, check_sparse, erk, per_expert, to_counts
from moon.sparse.masked_topology import MaskedTopology
from moon.sparse.masks import FirstMask, best_masks, first_masks
from moon.sparse.pattern import UNSTRUCTURED, NOfM, Pattern
from moon.sparse.rows import RowGroups, join
from moon.sparse.schedule import DropSchedule, check_changes
from moon.sparse.scores import checked
from moon.sparse.step_guard import GUARD
from moon.sparse.summary import matrices_of, summarize
from moon.sparse.weights import check_layout, expert_stacks, free_weights, sparse_weights

_log = logging.getLogger(__name__)


class SparseTopology(MaskedTopology):
    """Base class of sparse topologies: each layer keeps a given number of weights, the others are zero.

    A subclass must implement `grow_score`. It may also override

    - `keep_score`, if the weights to drop are not those of smallest magnitude;
    - `count`, if the number of non-zero weights of a layer changes during training;
    - `prepare`, to set up state before the first masks are drawn; `state_dict` and `load_state_dict` to save it;
    - `change` and `is_due`, if it also acts in steps outside the schedule;

    and set the class attributes `rewires`, `takes_pattern`, `grows_at_random` and those of `Topology`. Random scores
    come from `random_scores`, so that a resumed run grows the same weights.

    New weights start from zero, and a weight that is dropped and grown in the same step keeps its value: see the
    invariant of `MaskedTopology`.

    Attributes:
        rewires: Whether the method takes a schedule.
        takes_pattern: Whether the method supports an n:m pattern.
        grows_at_random: Whether grow scores are random. Otherwise, random numbers decide which of several equal scores
            grow.
        planned: The number of non-zero weights of each layer at the end of training, by name.
        counts: The current number of non-zero weights of each layer, by name.

    Example:
        >>> import torch
        >>> from moon import DropSchedule, SparseTopology
        >>> class GrowSmallGradients(SparseTopology):
        ...     def grow_score(self, weight, grad):
        ...         return -grad.abs()
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = GrowSmallGradients(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=1000))
        >>> topology.counts
        {'weight': 20}
    """

    rewires: ClassVar[bool] = True
    takes_pattern: ClassVar[bool] = True
    grows_at_random: ClassVar[bool] = False

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        sparsity: float,
        schedule: DropSchedule | None = None,
        allocation: Allocation = erk,
        dense: Collection[str] = (),
        seed: int = 0,
        pattern: Pattern = UNSTRUCTURED,
        first_mask: FirstMask = "random",
    ) -> None:
        """The constructor of every sparse topology. Some restrict an argument, as their description says.

        Args:
            model: The model. Its Linear, convolution, recurrent, attention and expert weights become sparse.
            optimizer: The optimizer of the model, already built from its parameters.
            sparsity: The fraction of weights that are zero, in [0, 1). Weights named in `dense` do not count.
            schedule: When the masks change, such as `DropSchedule(t_end=int(0.7 * epochs * len(loader)))`; None for
                methods in which they never do.
            allocation: How the sparsity is divided among layers: `erk`, `uniform`, or a function from shapes and
                sparsity to densities.
            dense: Names of weights to leave dense, such as `["fc.weight"]`, in addition to those that the allocation
                makes dense.
            seed: The seed of the first masks and of random growth.
            pattern: Where in a layer the non-zero weights may be: anywhere, or `NOfM(2, 4)`.
            first_mask: Which weights of a layer the first mask keeps: "random" ones, or those of largest "magnitude",
                for a model that was trained before. Weights that are sparse already keep their non-zeros in either
                case.
        """
        if first_mask not in get_args(FirstMask):
            raise ValueError(f"first_mask must be random or magnitude, not {first_mask}")
        if self.rewires != (schedule is not None):
            raise ValueError(
                f"{type(self).__name__} needs a schedule, such as schedule=DropSchedule(t_end=steps)"
                if self.rewires
                else f"{type(self).__name__} never rewires; leave schedule out"
            )
        self.check_pattern(pattern)
        given, schedule = schedule, schedule or DropSchedule(t_end=0)
        weights = sparse_weights(model)
        free = free_weights(weights, dense, optimizer)
        if pattern is not UNSTRUCTURED:
            check_layout(model, free)
        self._allocation = getattr(allocation, "__name__", repr(allocation))
        allocation = per_expert(allocation, expert_stacks(model))
        self.optimizer, self.schedule, self.seed, self.pattern = optimizer, schedule, seed, pattern
        self.sparsity = sparsity
        self.frozen_after = schedule.frozen_after
        self.key = derive("grow", seed)
        self.weights = weights
        # n of m already gives every row its share.
        self._groups = RowGroups(nn.Module() if isinstance(pattern, NOfM) else model, weights)
        shapes = {name: tuple(weight.shape) for name, weight in free.items()}
        self.planned = to_counts(pattern.densities(shapes, sparsity, allocation), weights)
        self.prepare(shapes, allocation)
        self.matrices = matrices_of(model)
        self._check_changes(given)
        self._groups.check(self._budget)
        counts = {name: self.count(name) for name in weights}
        masks = first_masks(weights, counts, self._groups, pattern, first_mask, seed)
        self._start(masks, counts, [name for name, weight in weights.items() if self.planned[name] < weight.numel()])
        GUARD.watch(self, list(free.values()))

    def _check_changes(self, schedule: DropSchedule | None) -> None:
        """Raise a ValueError if no weight would be zero, or if the masks would never change though they should."""
        densities = {name: self.planned[name] / weight.numel() for name, weight in self.weights.items()}
        check_sparse(densities, self.sparsity, type(self).__name__)
        if schedule is not None:
            most = max(self.planned[name] for name, density in densities.items() if density < 1)
            check_changes(schedule, type(self).__name__, most if self.only_replaces() else None)
        kept = {name: matrix.numel() for name, matrix in self.matrices.items()} | self.planned
        zeros = 1 - sum(kept.values()) / sum(matrix.numel() for matrix in self.matrices.values())
        if zeros < self.sparsity / 2:
            dense = [name for name, matrix in self.matrices.items() if kept[name] == matrix.numel()]
            largest = max(dense, key=lambda name: kept[name])
            _log.warning(
                "sparsity=%g, but only %.2g%% of the numbers in the model's matrices will be zero: %d of %d stay "
                "dense, the largest is '%s' (topology.summary() lists them)",
                *(self.sparsity, 100 * zeros, len(dense), len(kept), largest),
            )

    def settings(self) -> dict[str, Any]:
        chosen = {"sparsity": self.sparsity, "schedule": repr(self.schedule), "pattern": repr(self.pattern)}
        return super().settings() | chosen | {"allocation": self._allocation}

    def summary(self) -> str:
        return summarize(type(self).__name__, self.matrices, self.planned)

    def prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        """Set up state of a subclass; called by the constructor before the first masks are drawn.

        Args:
            shapes: The shapes of the weights that are not in `dense`, by name.
            allocation: The allocation.
        """

    @classmethod
    def only_replaces(cls) -> bool:
        """Whether masks change only by replacing weights.

        Returns:
            False for methods whose masks never change, and for those that change the number of non-zero weights.
        """
        return cls.rewires and cls.count is SparseTopology.count

    @classmethod
    def check_pattern(cls, pattern: Pattern) -> None:
        """Check that the method supports a pattern.

        Args:
            pattern: The pattern.

        Raises:
            ValueError: If the method changes the number of non-zero weights, which a pattern fixes.
        """
        if pattern is not UNSTRUCTURED and not cls.takes_pattern:
            raise ValueError(
                f"{cls.__name__} does not support a pattern: it prunes gradually, but n of m fixes the number of "
                "non-zero weights; leave pattern out"
            )

    @classmethod
    def of(cls, model: nn.Module) -> list[SparseTopology]:
        """Find the topologies of a model.

        A topology is found while it is referenced elsewhere. If several were created for a weight, only the newest
        is returned; those that name the weight in `dense` are ignored.

        Args:
            model: A model, or a module that contains it.

        Returns:
            The topologies of its weights, the oldest first.

        Example:
            >>> import torch
            >>> from moon import SparseTopology, Static
            >>> model = torch.nn.Linear(8, 4)
            >>> topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity=0.5)
            >>> SparseTopology.of(model) == [topology]
            True
        """
        return [topology for topology in GUARD.governing(model.parameters()) if isinstance(topology, SparseTopology)]

    @abstractmethod
    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        """Score the weights that may grow: those with the highest scores do. A subclass must implement this.

        Args:
            weight: The weight of a layer.
            grad: Its gradient in this step, also where the weight is zero.

        Returns:
            The scores, a tensor of the same shape, without NaN. Those of weights that are kept are ignored.
        """

    def keep_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        """Score the non-zero weights: those with the lowest scores are dropped. By default the magnitude.

        Args:
            weight: The weight of a layer.
            grad: Its gradient in this step.

        Returns:
            The scores, at least 0, a tensor of the same shape. Scores of weights that are zero are ignored.
        """
        return weight.abs()

    def count(self, name: str) -> int:
        """The number of non-zero weights of a layer from the current step on.

        Args:
            name: The name of the weight.

        Returns:
            The number; by default the planned one.
        """
        return self.planned[name]

    @property
    def is_due(self) -> bool:
        overrides = type(self).change is not SparseTopology.change
        return overrides or self.schedule.is_due(self.steps)

    def change(self) -> bool:
        """Drop and grow weights in the steps of the schedule. See `Topology.change`."""
        if not self.schedule.is_due(self.steps):
            return False
        self._rewire(self.schedule.share(self.steps))
        self._enforce()
        return True

    @torch.no_grad()
    def _rewire(self, share: float) -> None:
        """In each sparse layer, drop the fraction `share` of lowest keep score and grow as many by grow score."""
        names, strengths, keep, growths, drops, ties = [], [], [], [], [], []
        breaks_ties = share > 0 and not self.grows_at_random  # low-precision gradients often tie
        for index, name in enumerate(self.weights):
            count = self.count(name)
            grows = int(share * count) > 0
            if name not in self._pruned or (not grows and count == self.counts[name]):
                continue
            weight, grad = self.weights[name], self._gradient(name)
            self.key = derive("grow", self.seed, index, self.steps)  # the same after resuming and on every rank
            layer = type(self), name, weight, grad, self.masks[name]
            strength = torch.where(self.masks[name], checked("keep", self.keep_score(weight, grad), *layer), -1.0)
            growth = checked("grow", self.grow_score(weight, grad), *layer) if grows else torch.zeros_like(weight)
            tie = _hashed(derive("ties", self.seed, index, self.steps), weight) if breaks_ties else None
            for rows, size in self._groups.divide(name, count):
                drop = int(share * size)
                names.append(name)
                strengths.append(strength[rows])
                keep.append(size - drop)
                growths.append(growth[rows])
                drops.append(drop)
                if tie is not None:
                    ties.append(tie[rows])
        # All layers at once: few large kernels are faster on a GPU.
        masks = self.pattern.fill(top_masks(strengths, keep), growths, drops, ties or None)
        for name, mask in join(names, masks).items():
            self._replace(name, mask, self.count(name))

    def _best(self, scores: dict[str, Tensor]) -> dict[str, Tensor]:
        """Masks of the highest scores over all layers together, see `best_masks`."""
        return best_masks(scores, self.planned, self._groups, self.pattern, self._budget)

    def _budget(self, name: str) -> int:
        """The number of weights of which the unknown output of an `OpenHead` may have a quarter."""
        return self.planned[name]

    def _gradient(self, name: str) -> Tensor:
        """The gradient of a weight; raises a ValueError if there is none."""
        grad = self.weights[name].grad
        if grad is None:
            raise ValueError(
                f"'{name}' has no gradient; call loss.backward() before topology.step(), or name the weight in `dense` "
                "if the loss does not depend on it"
            )
        return grad

    def random_scores(self, weight: Tensor) -> Tensor:
        """Random scores for `grow_score`, which depend on seed, layer and step only.

        Args:
            weight: The weight of a layer.

        Returns:
            Numbers uniform in [0, 1), a tensor of the same shape and device.
        """
        return _hashed(self.key, weight)


def _hashed(key: int, weight: Tensor) -> Tensor:
    """Numbers uniform in [0, 1), one for each weight."""
    return hashed_uniform(key, weight.numel(), weight.device).view(weight.shape)
