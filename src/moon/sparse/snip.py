"""SNIP (Lee et al. 2019): keep the connections whose removal would change the first batch's loss most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from moon.sparse.allocation import Allocation, Shapes, uniform
from moon.sparse.pattern import ANYWHERE
from moon.sparse.topology import SparseTopology


class Snip(SparseTopology):
    """Saliency |w * dL/dw| of the first batch, over all layers at once; the masks are never changed after it.

    All weights exist until the first step has seen the gradient. How many a layer keeps is the saliency's choice, one
    at least; the allocation plays no part. Under a pattern of n of m each layer keeps its share.
    """

    rewires = False

    def _prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        self.frozen_after = 1
        if self.pattern is ANYWHERE:
            self.planned = self._counts(uniform(shapes, self.sparsity))  # until the saliency says otherwise

    def count(self, name: str) -> int:
        return self.weights[name].numel() if self.steps == 0 else self.planned[name]

    @property
    def is_due(self) -> bool:
        return self.steps == 0

    def change(self) -> bool:
        if self.steps == 0:
            self._choose()
        return super().change()

    @torch.no_grad()
    def _choose(self) -> None:
        new = self._best({name: (self.weights[name] * self._gradient(name)).abs() for name in self._pruned})
        self.planned |= {name: int(mask.sum()) for name, mask in new.items()}
        for name, mask in new.items():
            self._change(name, mask)
        self.counts |= self.planned

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        raise AssertionError("masks by saliency never grow")

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if self.steps:
            self.planned = dict(self.counts)
