"""Where in a layer its connections may be: anywhere, or N of every M neighbours, which hardware runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from moon.fast import top
from moon.sparse.allocation import Allocation, Shapes


class Pattern(Protocol):
    """A constraint on masks."""

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        """The density of each layer."""
        ...

    def fill(self, kept: Sequence[Tensor], scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        """Of each layer the mask of the connections kept and of so many best others."""
        ...


class Anywhere:
    """No constraint: the allocation decides how many, the score which."""

    sparsity: float | None = None  # any

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        return allocation(shapes, sparsity)

    def fill(self, kept: Sequence[Tensor], scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        others = top([torch.where(mask, -torch.inf, value) for mask, value in zip(kept, scores, strict=True)], counts)
        return [one | other for one, other in zip(kept, others, strict=True)]


@dataclass(frozen=True)
class NOfM:
    """`n` of every `m` neighbouring inputs of an output, as sparse matrix units take it (2 of 4).

    Neighbours are along the second dimension: inputs of a Linear, input channels of a convolution at one position of
    its kernel. A layer whose inputs do not divide by m stays dense. The sparsity is 1 - n / m and no other.
    """

    n: int = 2
    m: int = 4

    def __post_init__(self) -> None:
        if not 1 <= self.n < self.m:
            raise ValueError(f"a pattern keeps n of m with 1 <= n < m, not {self.n} of {self.m}")

    @property
    def sparsity(self) -> float:
        return 1 - self.n / self.m

    def densities(self, shapes: Shapes, sparsity: float, allocation: Allocation) -> dict[str, float]:
        if abs(sparsity - self.sparsity) > 1e-9:
            raise ValueError(
                f"sparsity {sparsity:g} cannot be had with {self.n} of {self.m}; it is {self.sparsity:g} in each layer"
            )
        densities = {name: self.n / self.m if shape[1] % self.m == 0 else 1.0 for name, shape in shapes.items()}
        if min(densities.values(), default=1.0) == 1.0:
            raise ValueError(
                f"no layer has inputs that divide by {self.m}; a pattern of {self.n} of {self.m} needs one"
            )
        return densities

    def fill(self, kept: Sequence[Tensor], scores: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
        return [self._filled(*layer) for layer in zip(kept, scores, counts, strict=True)]

    def _filled(self, kept: Tensor, score: Tensor, free: int) -> Tensor:
        if free == kept.numel():
            return torch.ones_like(kept)
        # (..., groups, m), the inputs last
        groups = torch.where(kept, torch.inf, score).movedim(1, -1).unflatten(-1, (-1, self.m))
        best = groups.topk(self.n, dim=-1, sorted=False).indices
        mask = torch.zeros_like(groups, dtype=torch.bool).scatter_(-1, best, True)
        return mask.flatten(-2).movedim(-1, 1)


ANYWHERE = Anywhere()
