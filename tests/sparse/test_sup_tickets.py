import pytest
import torch
from torch import nn

from moon import DropSchedule, RigL, WeightVote, uniform
from moon.sparse import SupTickets, TicketSchedule


def test_tickets_start_after_rigl_s_rewiring():
    schedule = TicketSchedule(10, 4, first=12, cycle=5, tickets=3)
    assert [step for step in range(60) if schedule.is_due(step)] == [4, 8, 12, 17, 22]
    assert [step for step in range(60) if schedule.begins_ticket(step)] == [12, 17, 22]
    assert schedule.end == 27


def test_tickets_may_start_at_t_end_but_never_in_the_first_step():
    at_once = TicketSchedule(8, 4, first=8, cycle=4, tickets=2)
    assert [step for step in range(60) if at_once.is_due(step)] == [4, 8, 12]
    assert not TicketSchedule(0, first=0, cycle=4).is_due(0)


def test_the_start_of_a_ticket_replaces_a_larger_share():
    plain, schedule = DropSchedule(10, 4), TicketSchedule(10, 4, first=12, cycle=5, tickets=3, explore=0.6)
    assert schedule.share(4) == plain.share(4)
    assert [schedule.share(step) for step in (11, 12, 13, 17, 22, 27)] == [0, 0.6, 0, 0.6, 0.6, 0]
    assert schedule.turnover() == pytest.approx(plain.turnover() + 3 * 0.6)


@pytest.mark.parametrize(
    "wrong", [{"first": 9}, {"cycle": 1}, {"tickets": 0}, {"explore": 1.5}, {"explore": -0.1}, {"delta_t": 0}]
)
def test_invalid_schedules_are_rejected(wrong):
    right = {"t_end": 10, "first": 10, "cycle": 2, "tickets": 1, "explore": 0.5}
    TicketSchedule(**right)
    key, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"{key}={value}|{key} must be"):
        TicketSchedule(**right | wrong)


def one_layer():
    """A layer with two non-zero weights of four, then BatchNorm; tickets of two steps from step 2 on."""
    model = nn.Sequential(nn.Linear(4, 1, bias=False), nn.BatchNorm1d(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    schedule = TicketSchedule(1, 1, first=2, cycle=2, tickets=3)
    return model, SupTickets(model, optimizer, 0.5, schedule, uniform)


def become(model, topology, weight, steps):
    mask = {"0.weight": torch.tensor([weight]) != 0}
    topology.load_state_dict({"steps": steps, "grown": torch.tensor(0), "masks": mask})
    model[0].weight.data = torch.tensor([weight])


def test_a_ticket_starts_by_growing_half_of_the_weights_by_gradient():
    model, topology = one_layer()
    become(model, topology, [3.0, 1.0, 0.0, 0.0], steps=2)
    model[0].weight.grad = torch.tensor([[0.0, 0.0, 1.0, -2.0]])
    topology.step()
    assert topology.masks["0.weight"].tolist() == [[True, False, False, True]]


def test_the_masks_are_frozen_once_the_last_ticket_has_started():
    _, topology = one_layer()
    assert topology.frozen_after == 7  # tickets start in steps 2, 4 and 6


def test_a_plain_schedule_is_rejected():
    layer = nn.Linear(4, 4)
    with pytest.raises(ValueError, match="SupTickets needs schedule=TicketSchedule"):
        SupTickets(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, DropSchedule(10, 1))


def test_superposing_keeps_the_largest_of_the_average_over_all_layers():
    model = nn.ModuleDict({"a": nn.Linear(4, 1), "b": nn.Conv2d(2, 1, (1, 2)), "c": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = TicketSchedule(0, first=2, cycle=2)
    topology = SupTickets(model, optimizer, 0.5, schedule, uniform, dense=["c.weight"])
    convolution = torch.tensor([[[[3.0, -4.0]], [[2.0, 0.05]]]]).to(memory_format=torch.channels_last)
    average = {
        "a.weight": torch.tensor([[0.1, -5.0, 0.2, 0.0]]),
        "b.weight": convolution,
        "c.weight": torch.tensor([[0.01, 0.02]]),
    }
    masks = topology.superpose(average)  # four weights, as many as a ticket has: 5, 4, 3, 2
    assert {name: mask.flatten().tolist() for name, mask in masks.items()} == {
        "a.weight": [False, True, False, False],
        "b.weight": [True, True, True, False],
    }
    assert average["a.weight"].tolist() == [[0.0, -5.0, 0.0, 0.0]]
    assert average["b.weight"].flatten().tolist() == [3.0, -4.0, 2.0, 0.0]
    assert average["c.weight"].tolist() == [[pytest.approx(0.01), pytest.approx(0.02)]]


def elected():
    """A vote of two tickets with different masks, whose average is 4, 0.5, 0, 3."""
    model, topology = one_layer()
    vote = WeightVote(model)
    for weight, steps in (([8.0, 2.0, 0.0, 0.0], 4), ([0.0, -1.0, 0.0, 6.0], 6)):
        become(model, topology, weight, steps)
        vote.cast(model)
    x = torch.randn(32, 4) + torch.tensor([5.0, 1.0, 0.0, 2.0])
    return model, topology, vote, vote.elect([x]), x


def test_a_vote_over_different_masks_keeps_the_number_of_weights():
    model, topology, vote, winner, _ = elected()
    assert vote.voters == 2
    assert winner[0].weight.tolist() == [[4.0, 0.0, 0.0, 3.0]]
    assert vote.masks["0.weight"].tolist() == [[True, False, False, True]]  # that of neither voter
    assert topology.masks["0.weight"].tolist() == [[False, True, False, True]]
    assert model[0].weight.tolist() == [[0.0, -1.0, 0.0, 6.0]]  # the trained model is not changed


def test_batchnorm_is_measured_after_pruning():
    _, _, _, winner, x = elected()
    torch.testing.assert_close(winner[1].running_mean, (4 * x[:, 0] + 3 * x[:, 3]).mean().view(1))


def test_no_other_topology_may_vote_over_different_masks():
    layer = nn.Linear(4, 4)
    topology = RigL(layer, torch.optim.SGD(layer.parameters(), lr=0.1), 0.5, DropSchedule(10, 1))
    with pytest.raises(ValueError, match="averaging different masks"):
        WeightVote(layer).cast(layer)
    assert topology.superpose({"weight": torch.ones(4, 4)}) == {}
