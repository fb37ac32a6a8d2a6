"""Captured steps are the plain loop's. On a CPU nothing is captured, but all else of the fast path runs."""

import copy

import pytest
import torch
from torch import nn

from moon.data import BENCHMARKS
from moon.experiments import build
from moon.experiments.speed import noise
from moon.objectives import OBJECTIVES, CrossEntropy
from moon.sparse import TOPOLOGIES, RigL
from moon.training import Training
from moon.training.captured import obstacle

ROW = BENCHMARKS["digits"]
SMALL = {"queue": 64, "draws": 50, "quiet_epochs": 1, "steps": 2, "replay": 40}


def training(objective="moon", topology="rigl", captured=None, net="lenet-norm", dtype=torch.float64, **rest):
    takes = OBJECTIVES[objective].takes()
    needs = "outliers" in takes
    recipe = build.recipe(
        ROW, objective, topology=topology, net=net, options={k: v for k, v in SMALL.items() if k in takes},
        outliers="noise" if needs else "", epochs=4, batch_size=16, delta_t_steps=3, vote_share=0, **rest,
    )  # fmt: skip
    torch.set_default_dtype(dtype)
    try:
        made = build.training(recipe, ROW, noise(ROW, 56), "cpu", noise(ROW, 40, seed=1) if needs else None)
    finally:
        torch.set_default_dtype(torch.float32)
    made.captured = captured
    original = made.batches.epoch
    made.batches.epoch = lambda epoch: ((x.to(dtype), y) for x, y in original(epoch))
    return made


def losses(made):
    found = []
    made.run(on_step=lambda epoch, step, loss: found.append(loss()), say=lambda line: pytest.fail(line))
    return found


def check_same(plain, fast, tolerance):
    """The same losses, weights, momentum and masks, step by step."""
    expected, found = losses(plain), losses(fast)
    assert len(expected) == len(found) == 4 * 4
    assert len(set(expected)) == len(expected)
    assert found == pytest.approx(expected, rel=tolerance)
    for a, b in zip(plain.model.state_dict().values(), fast.model.state_dict().values(), strict=True):
        assert torch.allclose(a, b, rtol=0, atol=100 * tolerance)
    for a, b in zip(plain.optimizer.state.values(), fast.optimizer.state.values(), strict=True):
        assert torch.allclose(a["momentum_buffer"], b["momentum_buffer"], rtol=0, atol=100 * tolerance)
    for name, mask in plain.topology.masks.items():
        assert torch.equal(mask, fast.topology.masks[name]), name
        assert not fast.topology.weights[name][~mask].any(), name
    assert plain.topology.steps == fast.topology.steps


@pytest.mark.parametrize("name", [name for name, kind in OBJECTIVES.items() if kind.capturable])
def test_every_objective_takes_the_same_steps(name):
    check_same(training(name, captured=False), training(name, captured=True), 1e-9)


@pytest.mark.parametrize("name", [name for name in TOPOLOGIES if name != "sup-tickets"])
def test_every_topology_takes_the_same_steps(name):
    check_same(training(topology=name, captured=False), training(topology=name, captured=True), 1e-9)


def test_a_residual_network_takes_the_same_steps():
    check_same(training(net="resnet18", captured=False), training(net="resnet18", captured=True), 1e-7)


def test_float32_agrees_within_rounding():
    plain, fast = (training(captured=captured, dtype=torch.float32) for captured in (False, True))
    assert losses(fast)[:6] == pytest.approx(losses(plain)[:6], rel=1e-4)


def test_a_state_saved_by_one_is_taken_up_by_the_other():
    whole = training(captured=False)
    expected = losses(whole)
    for first, second in ((False, True), (True, False)):
        begun, gone_on = training(captured=first), training(captured=second)

        class Stop(Exception):
            pass

        def stop(record, begun=begun):
            if record["epoch"] == 1:
                raise Stop

        with pytest.raises(Stop):
            begun.run(on_epoch=stop)
        gone_on.load_state_dict(copy.deepcopy(begun.state_dict()))
        assert losses(gone_on) == pytest.approx(expected[8:], rel=1e-9)


class Own(CrossEntropy):
    """Somebody's own objective."""


class OwnChecked(CrossEntropy):
    capturable = True


class OwnGrowth(RigL):
    """Somebody's own topology, of which only the score is new."""

    def grow_score(self, weight, grad):
        return grad.abs() + 1


class OwnStep(RigL):
    def step(self):
        super().step()


class OwnNet(nn.Sequential):
    pass


def with_parts(objective=None, topology=None, model=None, optimizer=torch.optim.SGD):
    model = model or nn.Sequential(nn.Flatten(), nn.Linear(64, 4))
    optimizer = optimizer(model.parameters(), lr=0.1)
    made = training()
    topology = (
        build.TOPOLOGIES["dense"](optimizer)
        if topology is None
        else topology(model, optimizer, 0.5, build.DropSchedule(9))
    )
    return Training(
        model, optimizer, objective or CrossEntropy(), topology, lambda _: 0.1, made.batches, epochs=2
    )  # fmt: skip


@pytest.mark.parametrize(
    ("parts", "why"),
    [
        ({}, None),
        ({"objective": Own()}, "Own does not say"),
        ({"objective": OwnChecked()}, None),
        ({"topology": OwnGrowth}, None),
        ({"topology": OwnStep}, "OwnStep has a step"),
        ({"model": OwnNet(nn.Linear(4, 4))}, "OwnNet does not say"),
        ({"optimizer": torch.optim.AdamW}, "only SGD"),
    ],
)
def test_what_is_not_ours_is_not_captured_unless_it_says_so(parts, why):
    found = obstacle(with_parts(**parts))
    assert (found is None) if why is None else (why in found)


def test_the_plain_loop_is_taken_with_a_line_that_says_why():
    lines = []
    made = training("cross-entropy")
    made.objective = Own()
    made.begin(lines.append)
    assert not lines  # on a CPU nobody expects it
    made.captured = True
    with pytest.raises(ValueError, match=r"cannot be captured: .*Own does not say"):
        made.run()
    made.captured, made.device = None, torch.device("cuda")
    made.begin(lines.append)
    assert len(lines) == 1
    assert "Own does not say" in lines[0]
    assert made._steps is None


def test_weights_have_memory_of_their_own_after_the_run():
    made = training(captured=True)
    losses(made)
    sizes = {parameter.untyped_storage().nbytes() for parameter in made.model.parameters()}
    assert max(sizes) == max(p.numel() * p.element_size() for p in made.model.parameters())
