import pytest
import torch
from torch import nn

from moon import DropSchedule, uniform
from moon.sparse import Gmp


def pruning(schedule, sparsity=0.8):
    """A layer with the weights 1 to 100 in random order, and the topology that prunes it."""
    layer = nn.Linear(10, 10, bias=False)
    topology = Gmp(layer, torch.optim.SGD(layer.parameters(), lr=0.0), sparsity, schedule, uniform)
    layer.weight.data = 1.0 + torch.randperm(100).view(10, 10)
    layer.weight.grad = torch.ones(10, 10)
    return layer, topology


@pytest.mark.parametrize(
    ("t_end", "counts"),
    [
        (10, [100, 100, 54, 54, 30, 30, 21, 21, 20, 20, 20, 20]),  # last change at 8: 20 + 80 * (1 - t / 8)^3
        (8, [100, 100, 44, 44, 23, 23, 20, 20, 20, 20, 20, 20]),  # last change at 6
    ],
)
def test_the_counts_follow_the_cubic_schedule(t_end, counts):
    _, topology = pruning(DropSchedule(t_end, 2, fraction=1.0))
    assert topology.masks["weight"].all()
    found = []
    for _ in counts:
        topology.step()
        found.append(int(topology.masks["weight"].sum()))
    assert found == counts
    assert topology.counts == {"weight": 20}


def test_the_smallest_weights_are_pruned_and_none_grow():
    layer, topology = pruning(DropSchedule(10, 2, fraction=1.0))
    for smallest in (1, 1, 47, 47, 71, 71, 80, 80, 81):
        before = topology.masks["weight"].clone()
        topology.step()
        assert not (topology.masks["weight"] & ~before).any()
        assert sorted(layer.weight[topology.masks["weight"]].tolist()) == list(range(smallest, 101))
    assert topology.turnover() == 0
