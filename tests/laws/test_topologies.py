"""Properties that every registered topology must have, including those of other packages."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from moon import DropSchedule, SparseTopology, TicketSchedule, WeightVote, open_head, uniform
from moon.recipe.registry import table

TOPOLOGIES = table("topology")
EVERY = pytest.mark.parametrize("name", TOPOLOGIES)
T_END = 9
NEVER_CHANGE, NEVER_GROW = ("dense", "static"), ("dense", "static", "snip", "gmp")
STEPS = 22  # every topology is frozen by then


def schedule_of(kind):
    if kind.superposes:
        return TicketSchedule(T_END, 2, first=10, cycle=4, tickets=3)
    return DropSchedule(T_END, 2) if kind.rewires else None


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.05),
}
BOTH = pytest.mark.parametrize("updates", OPTIMIZERS)


def build(name, small_net, seed=0, updates="sgd"):
    torch.manual_seed(seed)
    model = small_net()
    optimizer = OPTIMIZERS[updates](model.parameters())
    kind = TOPOLOGIES[name]
    if not issubclass(kind, SparseTopology):
        return model, optimizer, kind(optimizer)
    return model, optimizer, kind(model, optimizer, 0.8, schedule_of(kind), seed=seed)


def step(model, optimizer, topology, number):
    generator = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(4, (16,), generator=generator)
    nn.functional.cross_entropy(model(x), y).backward()
    topology.step()


@EVERY
@BOTH
def test_the_density_never_rises_and_frozen_masks_do_not_change(name, small_net, updates):
    model, optimizer, topology = build(name, small_net, updates=updates)
    density, frozen = topology.density(), None
    for number in range(STEPS):
        step(model, optimizer, topology, number)
        assert topology.density() <= density
        density = topology.density()
        if topology.masks:
            assert topology.counts == {key: int(mask.sum()) for key, mask in topology.masks.items()}
        for key, mask in topology.masks.items():
            weight = model.get_parameter(key)
            assert not weight.detach()[~mask].any(), key
            for what in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
                if (state := optimizer.state[weight].get(what)) is not None:
                    assert not state[~mask].any(), (key, what)
        masks = {key: mask.clone() for key, mask in topology.masks.items()}
        if frozen is not None:
            assert all(torch.equal(mask, frozen[key]) for key, mask in masks.items())
        if topology.is_frozen:
            frozen = masks
    assert frozen is not None
    if topology.masks:
        assert density == pytest.approx(0.2, abs=0.01)


@EVERY
def test_turnover_counts_grown_weights(name, small_net):
    model, optimizer, topology = build(name, small_net)
    before = {key: mask.clone() for key, mask in topology.masks.items()}
    for number in range(T_END):
        step(model, optimizer, topology, number)
    grown = any((mask & ~before[key]).any() for key, mask in topology.masks.items())
    changed = any(not torch.equal(mask, before[key]) for key, mask in topology.masks.items())
    assert topology.turnover() > 0 or not grown
    if TOPOLOGIES.is_builtin(name):
        assert changed == (name not in NEVER_CHANGE)
        assert (topology.turnover() > 0) == (name not in NEVER_GROW)


@EVERY
@pytest.mark.parametrize(("updates", "stop"), [("sgd", 1), ("sgd", 5), ("sgd", 11), ("adamw", 5)])
def test_resuming_is_bit_identical(name, updates, stop, small_net):
    model, optimizer, topology = build(name, small_net, updates=updates)
    for number in range(stop):
        step(model, optimizer, topology, number)
    other_model, other_optimizer, other = build(name, small_net, updates=updates)
    other_model.load_state_dict(model.state_dict())
    other_optimizer.load_state_dict(deepcopy(optimizer.state_dict()))  # torch would share the momentum buffers
    other.load_state_dict(topology.state_dict())
    for number in range(stop, STEPS):
        step(model, optimizer, topology, number)
        step(other_model, other_optimizer, other, number)
    for a, b in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert topology.turnover() == other.turnover()


@EVERY
@pytest.mark.slow
def test_one_voter_elects_itself(name, small_net):
    model, optimizer, topology = build(name, small_net)
    for number in range(STEPS):
        step(model, optimizer, topology, number)
    vote = WeightVote(model)
    vote.cast(model)
    elected = vote.elect([torch.randn(8, 1, 8, 8)])
    for a, b in zip(model.parameters(), elected.parameters(), strict=True):
        assert torch.equal(a, b)


@EVERY
def test_the_elected_model_is_as_sparse_as_the_voters(name, small_net):
    model, optimizer, topology = build(name, small_net)
    vote = WeightVote(model)
    for number in range(STEPS):
        step(model, optimizer, topology, number)
        if topology.is_frozen or (topology.superposes and number in (13, 17)):
            vote.cast(model)
    elected = vote.elect([torch.randn(8, 1, 8, 8)])
    masks = topology.masks | vote.masks
    assert sum(int(m.sum()) for m in masks.values()) == sum(int(m.sum()) for m in topology.masks.values())
    for key, mask in masks.items():
        assert not elected.get_parameter(key).detach()[~mask].any()


def build_open(kind):
    """A topology and its network for 20 known classes, whose last layer, with 21 x 32 weights, is sparse."""
    torch.manual_seed(0)
    model = open_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 20)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.02)
    return model, optimizer, kind(model, optimizer, 0.7, schedule_of(kind), uniform)


def step_without_the_unknown_output(model, optimizer, topology, number):
    """The loss does not depend on the unknown output, so that nothing but weight decay changes its weights."""
    generator = torch.Generator().manual_seed(number)
    optimizer.zero_grad()
    x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(20, (16,), generator=generator)
    nn.functional.cross_entropy(model(x)[:, :-1], y).backward()
    topology.step()


@EVERY
def test_the_unknown_output_keeps_its_weights_and_the_density_is_exact(name):
    kind = TOPOLOGIES[name]
    if not issubclass(kind, SparseTopology):
        pytest.skip("it has no masks")
    model, optimizer, topology = build_open(kind)
    other = build_open(kind)
    vote = WeightVote(model)
    for number in range(STEPS):
        step_without_the_unknown_output(model, optimizer, topology, number)
        assert topology.masks["3.weight"][-1].all()
        assert topology.counts == {key: int(mask.sum()) for key, mask in topology.masks.items()}
        if number == 5:  # resume another one
            for part, source in zip(other, (model, optimizer, topology), strict=True):
                part.load_state_dict(deepcopy(source.state_dict()))
        elif number > 5:
            step_without_the_unknown_output(*other, number)
        if topology.is_frozen or (topology.superposes and number in (13, 17)):
            vote.cast(model)
    assert torch.equal(model[3].weight, other[0][3].weight)
    expected = {key: round(0.3 * mask.numel()) for key, mask in topology.masks.items()}
    assert sum(topology.counts.values()) == sum(expected.values())
    assert topology.counts == expected or name == "snip"  # it divides the weights among the layers itself
    elected = vote.elect([torch.randn(8, 1, 8, 8)])
    assert elected[3].weight[-1].detach().all()
    assert sum(int((elected.get_parameter(key) != 0).sum()) for key in expected) <= sum(expected.values())
