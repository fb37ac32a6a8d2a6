import pytest
import torch
from torch import nn

from moon import DropSchedule, uniform
from moon.sparse import GraNet, NOfM


def layer_of(inputs, outputs, sparsity, schedule):
    layer = nn.Linear(inputs, outputs, bias=False)
    topology = GraNet(layer, torch.optim.SGD(layer.parameters(), lr=0.0), sparsity, schedule, uniform)
    layer.weight.grad = torch.rand(outputs, inputs)
    return layer, topology


def counts(topology, steps):
    found = []
    for _ in range(steps):
        topology.step()
        found.append(int(topology.masks["weight"].sum()))
    return found


def test_the_counts_follow_the_cubic_schedule_from_half():
    _, topology = layer_of(10, 10, 0.8, DropSchedule(10, 2))
    assert topology.masks["weight"].sum() == 50
    assert counts(topology, 10) == [50, 50, 33, 33, 24, 24, 20, 20, 20, 20]  # 20 + 30 * (1 - t / 8)^3
    assert topology.turnover() > 0


def test_below_half_sparsity_the_count_is_constant():
    _, topology = layer_of(10, 10, 0.3, DropSchedule(10, 2))
    assert counts(topology, 10) == [70] * 10


def test_it_prunes_first_and_then_regrows_by_gradient():
    layer, topology = layer_of(10, 1, 0.8, DropSchedule(3, 1, 1.0))
    mask = torch.arange(10).view(1, 10) < 5
    topology.load_state_dict({"steps": 1, "grown": torch.tensor(0), "masks": {"weight": mask}})
    layer.weight.data = torch.tensor([[5.0, -4.0, 3.0, 2.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0]])
    layer.weight.grad = torch.tensor([[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, -9.0, 0.0, 1.0]])
    topology.step()  # five weights become two, 5 and -4; int(0.75 * 2) of these are replaced
    assert topology.masks["weight"].nonzero()[:, 1].tolist() == [0, 7]
    assert layer.weight.tolist() == [[5.0] + [0.0] * 9]
    assert topology.turnover() == 0.5


def test_a_schedule_without_changes_and_a_pattern_are_rejected():
    with pytest.raises(ValueError, match="GraNet would never change its masks"):
        layer_of(8, 2, 0.8, DropSchedule(100, 100))
    layer = nn.Linear(8, 2)
    with pytest.raises(ValueError, match="GraNet does not support a pattern"):
        GraNet(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, DropSchedule(10, 2), pattern=NOfM(2, 4))
