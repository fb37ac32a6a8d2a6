import copy

import pytest
import torch
from torch import nn

from moon import Dense, DropSchedule, RigL, Static, WeightVote
from moon.sparse import SupTickets, TicketSchedule


def test_the_average_is_uniform():
    model = nn.Linear(1, 1, bias=False)
    vote = WeightVote(model)
    for value in (1.0, 2.0, 6.0):
        model.weight.data.fill_(value)
        vote.cast(model)
    assert vote.voters == 3
    assert vote.elect([]).weight.item() == pytest.approx(3.0)
    assert model.weight.item() == 6.0  # the trained model is not changed


def test_batchnorm_statistics_are_those_of_the_average(small_net):
    model = small_net()
    vote = WeightVote(model)
    vote.cast(model)
    batches = [(torch.randn(20, 1, 8, 8) + 3, torch.zeros(20)), (torch.randn(20, 1, 8, 8) - 1, torch.zeros(20))]
    elected = vote.elect(batches)
    outputs = [elected[0](x) for x, _ in batches]
    expected = sum(o.mean((0, 2, 3)) for o in outputs) / 2
    torch.testing.assert_close(elected[1].running_mean, expected)
    assert elected[1].momentum == model[1].momentum


def test_batches_may_be_mappings(small_net):
    class Keywords(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = small_net()

        def forward(self, pixel_values):
            return self.net(pixel_values)

    model, x = Keywords(), torch.randn(20, 1, 8, 8) + 3
    vote = WeightVote(model)
    vote.cast(model)
    statistics = [
        vote.elect([batch]).net[1].running_mean for batch in (x, {"pixel_values": x, "labels": torch.zeros(20)})
    ]
    assert torch.equal(*statistics)
    assert statistics[0].abs().sum() > 0


def test_voting_before_the_masks_are_frozen_is_rejected(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    vote = WeightVote(model)  # created before the topology, which is looked up at each call
    topology = RigL(model, optimizer, 0.5, DropSchedule(t_end=3, delta_t=1))
    for _ in range(3):
        with pytest.raises(ValueError, match=r"masks change until step 3.*smaller t_end"):
            vote.cast(model)
        model(torch.randn(2, 1, 8, 8)).sum().backward()
        topology.step()
    vote.cast(model)
    assert vote.voters == 1


def test_an_older_topology_of_the_same_model_does_not_block_a_vote(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    older = RigL(model, optimizer, 0.5, DropSchedule(t_end=100, delta_t=10))
    newer = Static(model, optimizer, 0.5)
    vote = WeightVote(model)
    vote.cast(model)
    assert vote.voters == 1
    assert newer.is_frozen
    assert not older.is_frozen


def test_if_a_topology_is_given_others_are_ignored(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    moving = RigL(model, optimizer, 0.5, DropSchedule(t_end=100, delta_t=10))
    frozen = Dense(optimizer)
    with pytest.raises(ValueError, match="masks change until step 100"):
        WeightVote(model, moving).cast(model)
    newest = RigL(model, optimizer, 0.5, DropSchedule(t_end=50, delta_t=10))
    for topology in (None, newest):
        with pytest.raises(ValueError, match="masks change until step 50"):
            WeightVote(model, topology).cast(model)
    with pytest.raises(ValueError, match="masks change until step 100"):
        WeightVote(model, moving).cast(model)
    vote = WeightVote(model, topology=frozen)
    vote.cast(model)
    vote.elect([torch.randn(8, 1, 8, 8)])
    assert (vote.voters, vote.masks) == (1, {})


def test_a_given_topology_makes_the_average_sparse_again(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topology = SupTickets(model, optimizer, 0.8, TicketSchedule(1, first=1, cycle=3, tickets=2))
    newest = Static(model, optimizer, 0.1)  # not the topology of the vote
    vote = WeightVote(model, topology)
    vote.cast(model)
    vote.elect([torch.randn(8, 1, 8, 8)])
    assert vote.masks.keys() == {name for name, n in topology.counts.items() if n < topology.masks[name].numel()}
    assert newest.density() > topology.density()


def test_voters_may_have_different_masks_if_the_topology_superposes(small_net):
    model = small_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topology = SupTickets(model, optimizer, 0.8, TicketSchedule(1, first=1, cycle=3, tickets=2))
    vote, masks = WeightVote(model), []
    for _ in range(2):
        for _ in range(3):
            model.zero_grad()
            model(torch.randn(8, 1, 8, 8)).square().sum().backward()
            topology.step()
        vote.cast(model)
        masks.append(topology.masks["4.weight"].clone())
    assert not torch.equal(*masks)
    elected = vote.elect([torch.randn(8, 1, 8, 8)])
    assert set(vote.masks) == {name for name, count in topology.counts.items() if count < topology.masks[name].numel()}
    for name, mask in (topology.masks | vote.masks).items():
        assert torch.equal(elected.get_parameter(name) != 0, mask)
    assert sum(int(mask.sum()) for mask in vote.masks.values()) == sum(topology.counts[name] for name in vote.masks)


def test_vote_masks_are_empty_if_voters_have_equal_masks(small_net):
    model = small_net()
    topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), 0.8)
    vote = WeightVote(model)
    vote.cast(model)
    vote.elect([torch.randn(8, 1, 8, 8)])
    assert topology.is_frozen
    assert vote.masks == {}


def test_an_election_without_votes_is_an_error():
    with pytest.raises(ValueError, match="there are no votes"):
        WeightVote(nn.Linear(1, 1)).elect([])


def test_the_state_can_be_restored():
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
