"""Dense: no masks, the baseline that sparse training is compared with."""

from __future__ import annotations

from torch.optim import Optimizer

from moon.sparse.topology import Topology


class Dense(Topology):
    """A dense network: `step()` is `optimizer.step()`, and there are no masks.

    Args:
        optimizer: The optimizer of the model.

    Example:
        >>> import torch
        >>> from moon import Dense
        >>> model = torch.nn.Linear(8, 4)
        >>> topology = Dense(torch.optim.SGD(model.parameters(), lr=0.1))
        >>> model(torch.ones(2, 8)).sum().backward()
        >>> topology.step()
        >>> topology.density()
        1.0
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.masks, self.weights = {}, {}
