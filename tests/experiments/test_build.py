from dataclasses import replace

import numpy as np
import pytest
import torch

from moon import Energy, Odin, OpenHead
from moon.data import BENCHMARKS, DataSet
from moon.experiments import build
from moon.sparse import TOPOLOGIES, Dense

ROW = BENCHMARKS["digits"]


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        ({"epochs": 5}, "quiet_epochs=5 of epochs=5"),
        ({"lr": -1.0}, "learning rates must be"),
        ({"lr": float("nan")}, "lr_start must be a finite number"),
        ({"objective": "mooon"}, "unknown objective 'mooon', did you mean 'moon'"),
        ({"topology": "rgl"}, "unknown topology 'rgl', did you mean 'rigl'"),
        ({"net": "resnet"}, "unknown net 'resnet', did you mean"),
        ({"allocation": "xyz"}, "unknown allocation 'xyz'; known: erk, uniform"),
        ({"rates": "fast"}, "unknown learning rates 'fast'; known: plain, moon"),
        ({"options": {"finale": "2"}}, "'moon' has no option 'finale', did you mean 'final'"),
        ({"options": {"final": "much"}}, "option 'final' of 'moon' must be a float, not 'much'"),
        ({"objective": "cross-entropy", "options": {"x": "1"}}, "it has none"),
    ],
)
def test_a_wrong_name_gets_the_nearest_right_one(arguments, what):
    with pytest.raises(ValueError, match=what):
        build.recipe(ROW, **arguments)


def test_the_net_is_open_where_the_objective_needs_it():
    for objective, outputs in (("moon", 11), ("cross-entropy", 10)):
        model = build.network(build.recipe(ROW, objective), ROW, "cpu")
        assert model.fc.out_features == outputs
        assert isinstance(model.fc, OpenHead) == (outputs == 11)


def test_weights_come_from_the_seed_alone():
    def weight(seed):
        torch.rand(3)
        return build.network(build.recipe(ROW, seed=seed), ROW, "cpu").fc.weight

    state = torch.get_rng_state()
    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))
    torch.set_rng_state(state)


def test_a_net_that_cannot_take_the_images_is_refused(data_root):
    small = replace(ROW, size=13)
    images = DataSet(np.zeros((20, 13, 13, 1), np.uint8), np.arange(20) % 10)
    with pytest.raises(ValueError, match=r"net 'lenet-norm' cannot take images of 13x13"):
        build.training(build.recipe(small), small, images, "cpu")


def test_the_schedule_is_in_steps():
    recipe = build.recipe(ROW, epochs=10, delta_t_steps=7, t_end_share=0.5, drop_fraction=0.2)
    model = build.network(recipe, ROW, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = build.topology(recipe, model, optimizer, steps=300).schedule
    assert (schedule.t_end, schedule.delta_t, schedule.fraction) == (150, 7, 0.2)


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_every_topology_is_built_and_steps(name):
    recipe = build.recipe(ROW, "cross-entropy", topology=name, delta_t_steps=1)
    model = build.network(recipe, ROW, "cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    topology = build.topology(recipe, model, optimizer, steps=400)
    for _ in range(3):
        model(torch.randn(4, 1, 28, 28)).sum().backward()
        topology.step()
    assert isinstance(topology, TOPOLOGIES[name])


def test_dense_has_no_sparsity():
    recipe = build.recipe(ROW, topology="dense")
    assert recipe.sparsity == 0
    model = build.network(recipe, ROW, "cpu")
    assert isinstance(build.topology(recipe, model, torch.optim.SGD(model.parameters(), 0.1), 10), Dense)


def test_detectors_by_name():
    odin = build.detector("odin", BENCHMARKS["cifar10"])
    assert isinstance(odin, Odin)
    assert odin.std == (0.2470, 0.2435, 0.2616)
    energy = build.detector("ebo:released", ROW)
    assert isinstance(energy, Energy)
    assert energy.released
    for wrong, what in (("msp:released", "no variant"), ("ebo:x", "no variant"), ("knnn", "did you mean 'knn'")):
        with pytest.raises(ValueError, match=what):
            build.detector(wrong, ROW)
