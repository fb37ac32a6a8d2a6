import torch
from torch import nn

from moon import SET, DropSchedule, uniform


def rewired(seed: int) -> torch.Tensor:
    layer = nn.Linear(40, 40, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    topology = SET(layer, optimizer, 0.5, DropSchedule(4, 1), allocation=uniform, seed=seed)
    before = topology.masks["weight"].clone()
    layer.weight.grad = torch.zeros_like(layer.weight)
    layer.weight.data.copy_(torch.where(before, 1.0, 0.0))
    topology.step()
    topology.step()
    return topology.masks["weight"]


def test_growth_is_random_but_repeatable():
    assert torch.equal(rewired(0), rewired(0))
    assert not torch.equal(rewired(0), rewired(1))


def test_growth_ignores_the_gradient():
    layer = nn.Linear(100, 100, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    topology = SET(layer, optimizer, 0.5, DropSchedule(10**6, 1), allocation=uniform)
    layer.weight.grad = torch.zeros_like(layer.weight)
    layer.weight.grad[:50] = 100.0  # RigL would grow in the first half only
    old = topology.masks["weight"].clone()
    topology.step()
    topology.step()
    new = topology.masks["weight"] & ~old
    assert 0.4 < new[:50].sum() / new.sum() < 0.6
