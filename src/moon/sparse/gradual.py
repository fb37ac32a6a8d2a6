"""Topologies that begin with more connections than they end with."""

from __future__ import annotations

from typing import ClassVar

from moon.sparse.allocation import Allocation, Shapes
from moon.sparse.topology import SparseTopology


class Gradual(SparseTopology):
    """The number of connections of a layer falls at each change of the masks (Zhu and Gupta 2018):

    n(t) = n_end + (n_begin - n_end) * (1 - t / t_last)^3,        t_last: the last change before t_end
    """

    takes_pattern = False
    dense_gradient = None
    begin_sparsity: ClassVar[float] = 0.0

    def _prepare(self, shapes: Shapes, allocation: Allocation) -> None:
        schedule = self.schedule
        self.last = (schedule.t_end - 1) // schedule.delta_t * schedule.delta_t
        if self.last < 1:
            raise ValueError(
                f"{type(self).__name__} changes its masks every {schedule.delta_t} steps before step {schedule.t_end}, "
                "which is never; give a smaller delta_t or train longer"
            )
        begin = self._counts(allocation(shapes, min(self.begin_sparsity, self.sparsity)))
        self.begin = {name: max(begin[name], self.planned[name]) for name in begin}

    def count(self, name: str) -> int:
        left = (1 - min(self.steps / self.last, 1.0)) ** 3
        return self.planned[name] + round((self.begin[name] - self.planned[name]) * left)
