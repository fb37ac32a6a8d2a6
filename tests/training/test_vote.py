import copy

import pytest
import torch
from torch import nn

from moon import DropSchedule, RigL, WeightVote


def test_the_average_is_uniform():
    model = nn.Linear(1, 1, bias=False)
    vote = WeightVote(model)
    for value in (1.0, 2.0, 6.0):
        model.weight.data.fill_(value)
        vote.cast(model)
    assert vote.voters == 3
    assert vote.elect([]).weight.item() == pytest.approx(3.0)
    assert model.weight.item() == 6.0  # the trained model is left alone


def test_batchnorm_is_estimated_for_the_elected(small_net):
    model = small_net()
    vote = WeightVote(model)
    vote.cast(model)
    batches = [(torch.randn(20, 1, 8, 8) + 3, torch.zeros(20)), (torch.randn(20, 1, 8, 8) - 1, torch.zeros(20))]
    elected = vote.elect(batches)
    outputs = [elected[0](x) for x, _ in batches]
    expected = sum(o.mean((0, 2, 3)) for o in outputs) / 2
    torch.testing.assert_close(elected[1].running_mean, expected)
    assert elected[1].momentum == model[1].momentum


def test_voting_before_the_masks_are_frozen_is_refused(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    early = WeightVote(model)
    topology = RigL(model, optimizer, 0.5, DropSchedule(t_end=3))
    vote = early  # made before the topology, which it finds all the same
    for _ in range(3):
        with pytest.raises(ValueError, match=r"masks change until step 3.*smaller t_end"):
            vote.cast(model)
        model(torch.randn(2, 1, 8, 8)).sum().backward()
        topology.step()
    vote.cast(model)
    assert vote.voters == 1


def test_nobody_voted():
    with pytest.raises(ValueError, match="nobody has voted"):
        WeightVote(nn.Linear(1, 1)).elect([])


def test_its_state_survives():
    model = nn.Linear(3, 2)
    vote = WeightVote(model)
    vote.cast(model)
    saved = copy.deepcopy(vote.state_dict())
    other = WeightVote(model)
    other.load_state_dict(saved)
    for v in (vote, other):
        model.weight.data.fill_(0.25)
        v.cast(model)
    assert torch.equal(vote.elect([]).weight, other.elect([]).weight)
    other.load_state_dict({})
    assert other.voters == 0
