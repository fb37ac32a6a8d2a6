import pytest
import torch
from torch import nn

from moon import DropSchedule, RigL, uniform
from moon.sparse import Mest


def test_keep_score_by_hand():
    score = Mest.keep_score(Mest, torch.tensor([1.0, -2.0, 0.0]), torch.tensor([100.0, -50.0, 7.0]))
    assert score.tolist() == pytest.approx([2.0, 2.5, 0.07])


def rewired(kind, seed=0):
    """The mask after one of two weights is replaced: 0.1 with a large gradient, and 0.5."""
    layer = nn.Linear(4, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    topology = kind(layer, optimizer, 0.5, DropSchedule(100, 1, 1.0), uniform, seed=seed)
    mask = torch.tensor([[True, True, False, False]])
    topology.load_state_dict({"steps": 50, "grown": torch.tensor(0), "masks": {"weight": mask}})
    layer.weight.data = torch.tensor([[0.1, 0.5, 0.0, 0.0]])
    layer.weight.grad = torch.tensor([[100.0, 0.0, 200.0, 0.0]])
    topology.step()
    return topology.masks["weight"].nonzero()[:, 1].tolist()


def test_a_small_weight_with_a_large_gradient_is_kept_but_rigl_drops_it():
    assert rewired(RigL) == [1, 2]
    assert all(0 in rewired(Mest, seed) for seed in range(10))


def test_growth_is_random_and_ignores_the_gradient():
    grown = [rewired(Mest, seed)[1] for seed in range(30)]
    assert set(grown) == {1, 2, 3}
    assert rewired(Mest, 5)[1] == grown[5]
