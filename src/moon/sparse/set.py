"""SET (Mocanu et al. 2018): drop the smallest weights, grow at random.

Schedule and allocation are those of RigL, so that the two methods differ only in the grow score.
"""

from __future__ import annotations

from torch import Tensor

from moon.sparse.sparse_topology import SparseTopology


class SET(SparseTopology):
    """SET: every `delta_t` steps, replace the weights of smallest |w| by random ones.

    The grow score is uniform in [0, 1).

    Example:
        >>> import torch
        >>> from moon import SET, DropSchedule
        >>> model = torch.nn.Linear(20, 10)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> topology = SET(model, optimizer, sparsity=0.9, schedule=DropSchedule(t_end=700))
        >>> model(torch.randn(4, 20)).square().sum().backward()
        >>> topology.step()  # instead of optimizer.step()
        >>> topology.density()
        0.1
    """

    grows_at_random = True

    def grow_score(self, weight: Tensor, grad: Tensor) -> Tensor:
        return self.random_scores(weight)
