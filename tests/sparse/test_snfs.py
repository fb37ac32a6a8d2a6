from copy import deepcopy

import pytest
import torch
from torch import nn

from moon import DropSchedule, RigL, uniform
from moon.sparse import Snfs


def one_layer(kind=Snfs, schedule=None, lr=0.0):
    """A layer with two non-zero weights of four: 3 and 1."""
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=lr, momentum=0.9)
    topology = kind(layer, optimizer, 0.5, schedule or DropSchedule(100, 50), uniform)
    state = topology.state_dict() | {"masks": {"weight": torch.tensor([[True, True, False, False]])}}
    topology.load_state_dict(deepcopy(state))
    layer.weight.data = torch.tensor([[3.0, 1.0, 0.0, 0.0]])
    return layer, optimizer, topology


def step(layer, topology, *grad):
    layer.weight.grad = torch.tensor([grad])
    topology.step()


def averages(topology):
    return topology.state_dict()["averages"]["weight"]


def test_the_moving_average_by_hand():
    layer, _, topology = one_layer()
    step(layer, topology, 1.0, 0.0, -2.0, 4.0)
    step(layer, topology, 0.0, 0.0, -10.0, 4.0)
    expected = torch.tensor([[0.09, 0.0, -1.18, 0.76]])  # 0.9 * (0.1 * first) + 0.1 * second
    torch.testing.assert_close(averages(topology), expected)
    torch.testing.assert_close(topology.grow_score(layer.weight, torch.ones(1, 4)), expected.abs())


@pytest.mark.parametrize(("kind", "grown"), [(Snfs, 2), (RigL, 3)])
def test_it_grows_where_the_gradient_was_large_even_if_it_is_zero_now(kind, grown):
    layer, _, topology = one_layer(kind, DropSchedule(2, 1, 1.0))
    step(layer, topology, 0.0, 0.0, 8.0, 0.0)
    step(layer, topology, 0.0, 0.0, 0.0, 1.0)  # replaces one of two: drops the weight 1
    assert topology.masks["weight"].nonzero()[:, 1].tolist() == [0, grown]


def test_the_average_is_kept_outside_the_optimizer():
    layer, optimizer, topology = one_layer(lr=0.1)
    step(layer, topology, 1.0, 1.0, 1.0, 1.0)
    assert averages(topology).tolist() == [[pytest.approx(0.1)] * 4]
    assert optimizer.state[layer.weight]["momentum_buffer"].tolist() == [[1.0, 1.0, 0.0, 0.0]]
    assert layer.weight[0, 2:].tolist() == [0.0, 0.0]


def test_the_average_stops_when_the_masks_are_frozen():
    layer, _, topology = one_layer()
    topology.frozen_after = 1
    step(layer, topology, 1.0, 0.0, 0.0, 0.0)
    step(layer, topology, 5.0, 5.0, 5.0, 5.0)
    assert averages(topology).tolist() == [[pytest.approx(0.1), 0.0, 0.0, 0.0]]


def test_resuming_restores_the_average():
    layer, _, topology = one_layer()
    step(layer, topology, 1.0, 2.0, 3.0, 4.0)
    other_layer, _, other = one_layer()
    other.load_state_dict(topology.state_dict())
    for model, resumed in ((layer, topology), (other_layer, other)):
        step(model, resumed, 4.0, 3.0, 2.0, 1.0)
    assert torch.equal(averages(topology), averages(other))
    torch.testing.assert_close(averages(other), torch.tensor([[0.49, 0.48, 0.47, 0.46]]))
