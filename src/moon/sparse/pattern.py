"""Patterns: where in a layer the non-zero weights may be, anywhere or N of every M neighbours, as GPUs support it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from moon.fast import top_masks
from moon.fast.selection import break_ties
from moon.sparse.allocation import Allocation, Shapes


@runtime_checkable
class Pattern(Protocol):
    """What a pattern must provide, by inheritance or not: a constraint on the masks of a `SparseTopology`."""

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        """The density of each layer, in (0, 1]; a pattern that fixes them ignores `allocation`, the user's.

        Raises a ValueError if the pattern cannot have this sparsity.
        """
        ...

    def fill(
        self,
        kept: Sequence[Tensor],
        scores: Sequence[Tensor],
        counts: Sequence[int],
        ties: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """Add weights to masks: in each layer the `counts` of highest score, beside those in `kept`.

        `ties`, numbers in [0, 1), order weights of equal score; None if their order does not matter.
        """
        ...


class Unstructured:
    """No constraint: the allocation decides how many weights a layer keeps, the scores which."""

    sparsity: float | None = None  # any

    def __repr__(self) -> str:
        return "UNSTRUCTURED"

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        """See `Pattern.densities`."""
        return allocation(shapes, sparsity)

    def fill(
        self,
        kept: Sequence[Tensor],
        scores: Sequence[Tensor],
        counts: Sequence[int],
        ties: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Pattern.fill`."""
        free = [torch.where(mask, -torch.inf, value) for mask, value in zip(kept, scores, strict=True)]
        others = top_masks(free, counts, ties)
        return [mask | other for mask, other in zip(kept, others, strict=True)]


@dataclass(frozen=True)
class NOfM:
    """n:m sparsity: `n` of every `m` neighbouring inputs of an output are non-zero, as sparse matrix units require.

    Neighbours are along the second dimension: inputs of a Linear layer, input channels of a convolution at one position
    of its kernel. A layer whose number of inputs is not divisible by m stays dense. The sparsity is always 1 - n / m.

    Args:
        n: The number of non-zero weights in each group, in [1, m).
        m: The size of a group.

    Example:
        >>> import torch
        >>> from moon import NOfM, Static
        >>> model = torch.nn.Linear(8, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = Static(model, optimizer, sparsity=0.5, pattern=NOfM(2, 4))
        >>> topology.masks["weight"].view(2, 2, 4).sum(2)
        tensor([[2, 2],
                [2, 2]])
    """

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m:
            raise ValueError(f"a pattern keeps n of m weights with 1 <= n < m, not {self.n} of {self.m}")

    @property
    def sparsity(self) -> float:
        """The fraction of weights that are zero, 1 - n / m."""
        return 1 - self.n / self.m

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        """See `Pattern.densities`; the allocation is ignored."""
        if abs(sparsity - self.sparsity) > 1e-9:
            raise ValueError(
                f"sparsity {sparsity:g} is not possible with {self.n} of {self.m}; set sparsity={self.sparsity:g}"
            )
        densities = {name: self.n / self.m if shape[1] % self.m == 0 else 1.0 for name, shape in shapes.items()}
        if min(densities.values(), default=1.0) == 1.0:
            raise ValueError(
                f"a pattern of {self.n} of {self.m} needs a layer whose number of inputs is divisible by {self.m}; "
                "the model has none"
            )
        return densities

    def fill(
        self,
        kept: Sequence[Tensor],
        scores: Sequence[Tensor],
        counts: Sequence[int],
        ties: Sequence[Tensor] | None = None,
    ) -> list[Tensor]:
        """See `Pattern.fill`; each group is filled up to n weights."""
        numbers = [None] * len(kept) if ties is None else ties
        return [self._filled(*layer) for layer in zip(kept, scores, counts, numbers, strict=True)]

    def _filled(self, kept: Tensor, score: Tensor, count: int, ties: Tensor | None) -> Tensor:
        """The new mask of one layer; all weights if the layer is dense."""
        if count == kept.numel():
            return torch.ones_like(kept)
        groups = self._grouped(torch.where(kept, torch.inf, score))
        mask = self._highest(groups)
        if ties is not None:
            ordered = break_ties(groups, mask, self._grouped(ties), dim=-1)
            mask = self._highest(torch.where(self._grouped(kept), torch.inf, ordered))
        return mask.flatten(-2).movedim(-1, 1)

    def _grouped(self, values: Tensor) -> Tensor:
        """A view of shape (..., groups, m), the inputs last."""
        return values.movedim(1, -1).unflatten(-1, (-1, self.m))

    def _highest(self, groups: Tensor) -> Tensor:
        """A mask of the n highest numbers of each group."""
        best = groups.topk(self.n, dim=-1, sorted=False).indices
        return torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, best, True)


UNSTRUCTURED = Unstructured()


def pattern_of(text: str) -> NOfM | Unstructured:
    """The pattern "n:m", or `UNSTRUCTURED` for an empty string. Raises a ValueError if it is neither."""
    if not text:
        return UNSTRUCTURED
    n, _, m = str(text).partition(":")
    if not (n.isdecimal() and m.isdecimal()):
        raise ValueError(f"a pattern is n:m, such as 2:4, not '{text}'")
    return NOfM(int(n), int(m))
