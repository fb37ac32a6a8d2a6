"""`moon.integrations.common`: what callbacks for other loops share."""

import pytest
import torch
from torch import nn

from moon import AutoWeight, Dense, DropSchedule, Moon, RigL, lenet, open_head
from moon.integrations.common import SparseTraining
from moon.integrations.objective import make_objective


def network():
    torch.manual_seed(0)
    return open_head(nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)))


def train(training, model, optimizer, steps=range(20)):
    for step in steps:
        x = torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), torch.arange(16) % 4).backward()
        optimizer.step()
        if step % 5 == 4:
            training.end_epoch(step // 5)
            training.end_epoch(step // 5)  # a second call does nothing


def begun(topology="rigl", sparsity=0.8, model=None, state=None, steps=20, epochs=4, **options):
    model = model or network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    training = SparseTraining(topology, sparsity, **{"vote_share": 0.5, "t_end_share": 0.5, "delta_t": 2} | options)
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        training.load_state_dict(state["training"])
        assert training.has_state
    training.begin(model, optimizer, steps=steps, epochs=epochs)
    return training, model, optimizer


@pytest.mark.parametrize("at", [5, 7, 15])
def test_a_resumed_run_is_bit_identical(at):
    """The masks of a new topology are not those of the checkpoint; no weight and no momentum may be lost to them."""
    whole, model, optimizer = begun()
    train(whole, model, optimizer, range(at))
    state = saved(whole, model, optimizer)
    train(whole, model, optimizer, range(at, 20))
    again, other, second = begun(state=state)
    train(again, other, second, range(at, 20))
    assert again.topology.turnover() == whole.topology.turnover() > 0
    batches = [torch.randn(16, 1, 8, 8)]
    assert whole.elect(batches) == again.elect(batches) == 2
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name


def saved(training, model, optimizer):
    parts = {"model": model, "optimizer": optimizer, "training": training}
    return {name: torch_copy(part.state_dict()) for name, part in parts.items()}


@pytest.mark.parametrize("length", [{"steps": 40, "epochs": 8}, {"steps": 40}])
def test_a_run_is_resumed_with_its_own_length(length):
    """Otherwise masks would change after the first votes."""
    training, model, optimizer = begun()
    train(training, model, optimizer)
    state = saved(training, model, optimizer)
    with pytest.raises(ValueError, match=r"run of 20 steps in 4 epochs, but this run has 40 steps in .*start again"):
        begun(state=state, **length)


def test_votes_with_different_masks_are_not_elected():
    again, other, second = begun()
    train(again, other, second)
    _, mask = next(item for item in again.topology.masks.items() if not item[1].all())
    mask.zero_()
    last = torch_copy(other.state_dict())
    with pytest.raises(ValueError, match=r"non-zero outside the mask of '.*weight', so they had different masks"):
        again.elect([torch.randn(16, 1, 8, 8)])
    assert all(torch.equal(value, last[name]) for name, value in other.state_dict().items())


def test_masks_and_weights_of_different_checkpoints_are_refused():
    training, model, optimizer = begun()
    train(training, model, optimizer, range(5))
    state = saved(training, model, optimizer)
    train(training, model, optimizer, range(5, 15))
    state["training"] = torch_copy(training.state_dict())
    with pytest.raises(ValueError, match=r"'1.weight' is non-zero outside its saved mask: .* different checkpoints"):
        begun(state=state)


def torch_copy(value):
    if isinstance(value, dict):
        return {key: torch_copy(part) for key, part in value.items()}
    if isinstance(value, list):
        return [torch_copy(part) for part in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


def test_the_election_replaces_the_weights_in_place():
    training, model, optimizer = begun(vote_share=0.25)
    weight = model[1].weight
    train(training, model, optimizer)
    last, statistics = weight.detach().clone(), model[2].running_mean.clone()
    assert training.elect([torch.randn(16, 1, 8, 8)]) == 1
    assert torch.equal(weight, last)  # a single voter elects itself
    assert model[1].weight is weight
    assert not torch.equal(model[2].running_mean, statistics)
    training.end()
    assert not training.topology.is_attached
    train(training, model, optimizer, range(1))  # the optimizer is an ordinary one again
    assert training.topology.density() > 0.9


def test_names_classes_and_schedules():
    assert isinstance(begun("dense", None, vote_share=0)[0].topology, Dense)
    training, *_ = begun(RigL, schedule=DropSchedule(7, 3), allocation="uniform", dense=["4.weight"])
    assert training.topology.schedule == DropSchedule(7, 3)
    assert training.topology.masks["4.weight"].all()
    training, *_ = begun(delta_t=None)
    assert training.topology.schedule.delta_t == 1  # fewer than 100 steps, so that the masks change
    with pytest.raises(ValueError, match="unknown topology 'rigle'"):
        SparseTraining("rigle")
    with pytest.raises(ValueError, match="unknown allocation 'erg'"):
        SparseTraining(allocation="erg")
    with pytest.raises(ValueError, match="masks change until step"):
        begun(vote_share=1.0)


def test_objectives_by_name():
    model = open_head(lenet(10))
    objective = make_objective("moon", model, epochs=50, final=2.0)
    assert objective.log(49) == {"w": 2.0}
    assert make_objective(objective, model, epochs=50) is objective
    assert make_objective("vos", lenet(10), epochs=50).log(0) is not None
    with pytest.raises(ValueError, match="Moon is built already"):
        make_objective(objective, model, epochs=50, final=1.0)
    with pytest.raises(ValueError, match="unknown objective 'mon'"):
        make_objective("mon", model, epochs=50)
    with pytest.raises(ValueError, match=r"'moon' has no option 'finale' \(did you mean 'final'\?\); choose from: "):
        make_objective("moon", model, epochs=50, finale=1.0)
    with pytest.raises(ValueError, match="objective 'hod' needs outliers, outlier_classes; build it yourself"):
        make_objective("hod", lenet(10), epochs=50)


def test_a_weight_for_another_number_of_epochs_is_noticed(caplog):
    model = nn.ModuleDict({"net": network(), "objective": Moon(AutoWeight(epochs=9))})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    training = SparseTraining("static", 0.8)
    training.begin(model["net"], optimizer, steps=20, epochs=10, within=model)
    assert "AutoWeight was built for 9 epochs, but the run has 10" in caplog.text
    assert training.vote_from == 8  # MOON's own share
    assert training.record(8)["w"] == 1.0


@pytest.mark.parametrize("topology", ["dense", Dense])
def test_a_dense_network_has_no_sparsity(topology):
    with pytest.raises(ValueError, match=r"a dense network has no sparsity \(0.8 was given\)"):
        SparseTraining(topology, 0.8)
    assert [SparseTraining(topology, given).sparsity for given in (None, 0.0)] == [0.0, 0.0]
    assert [SparseTraining("rigl", given).sparsity for given in (None, 0.0, 0.5)] == [0.9, 0.0, 0.5]
