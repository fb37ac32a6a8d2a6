import pytest
import torch
from torch import nn

from moon import DropSchedule, Static


def test_it_never_changes_and_is_frozen_from_the_start():
    layer = nn.Linear(20, 20)
    topology = Static(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.8)
    mask = topology.masks["weight"].clone()
    assert topology.is_frozen
    for _ in range(5):
        layer(torch.randn(4, 20)).square().sum().backward()
        topology.step()
    assert torch.equal(mask, topology.masks["weight"])


def test_a_schedule_is_rejected():
    layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="never rewires; leave schedule out"):
        Static(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, DropSchedule(10))
