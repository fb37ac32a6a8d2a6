"""Dense: every weight exists, what sparsity is compared with."""

from __future__ import annotations

from torch.optim import Optimizer

from moon.sparse.topology import Topology


class Dense(Topology):
    """Every weight exists: the null object, plain `optimizer.step()`."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.masks, self.weights = {}, {}
