"""Topologies that start with more non-zero weights than they end with."""

from __future__ import annotations

from typing import ClassVar

from moon.sparse.allocation import Allocation, Shapes, to_counts
from moon.sparse.sparse_topology import SparseTopology


class Gradual(SparseTopology):
    """Base class of gradual pruning: the number of non-zero weights of a layer falls at each change of the masks.

    n(t) = n_end + (n_begin - n_end) * (1 - t / t_last)^3        (Zhu and Gupta 2018)

    t_last is the last change before t_end. A subclass must implement `grow_score` and may set `begin_sparsity`, the
    sparsity at the start.
    """

    takes_pattern = False
    dense_gradient = None
    begin_sparsity: ClassVar[float] = 0.0

    def prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        schedule = self.schedule
        self.last = (schedule.t_end - 1) // schedule.delta_t * schedule.delta_t
        begin = to_counts(allocation(shapes, min(self.begin_sparsity, self.sparsity)), self.weights)
        self.begin = {name: max(begin[name], self.planned[name]) for name in begin}

    def count(self, name: str) -> int:
        remaining = (1 - min(self.steps / self.last, 1.0)) ** 3
        return self.planned[name] + round((self.begin[name] - self.planned[name]) * remaining)
