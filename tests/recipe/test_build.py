from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from moon import Energy, Odin, OpenHead
from moon.data import BENCHMARKS, DataSet
from moon.objectives import OBJECTIVES
from moon.recipe import build
from moon.recipe.recipe import Recipe
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
        ({"rates": "fast"}, "unknown learning rates 'fast'; known: plain, moon, tickets"),
        ({"options": {"finale": "2"}}, "'moon' has no option 'finale', did you mean 'final'"),
        ({"options": {"final": "much"}}, "option 'final' of 'moon' must be a float, not 'much'"),
        ({"objective": "cross-entropy", "options": {"x": "1"}}, "it has none"),
        ({"objective": "logitnorm", "options": {"inner": "moon"}}, "no option 'inner'"),
        ({"objective": "hod"}, "name a set of them: --outliers SET"),
        ({"objective": "moon", "outliers": "photos"}, "takes no outliers"),
        ({"objective": "vos", "options": {"queue": "1"}}, "queue=1 at least 2"),
        ({"pattern": "2-4"}, "a pattern is n:m, such as 2:4, not '2-4'"),
        ({"pattern": "4:4"}, "n of m with 1 <= n < m"),
        ({"pattern": "2:4", "sparsity": 0.9}, "sparsity 0.9 cannot be had with 2 of 4"),
        ({"pattern": "2:4", "topology": "dense"}, "a dense network has no pattern"),
        ({"topology": "sup-tickets", "rates": "plain"}, "needs learning rates with cycles"),
        ({"sparsity": 1.0}, "sparsity must be in"),
        ({"topology": "dense", "sparsity": 0.9}, "a dense network has no sparsity"),
        ({"objective": "hod", "outliers": "digits"}, "'digits' is the known set"),
        ({"pattern": "2:4", "topology": "granet"}, "GraNet prunes step by step"),
        (
            {"topology": "sup-tickets", "epochs": 3, "objective": "mixup"},
            "epochs=3 leave none before the last 3 cycles",
        ),
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


@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_objective_is_built_from_a_recipe(name):
    needs = "outliers" in OBJECTIVES[name].takes()
    recipe = build.recipe(ROW, name, outliers="photos" if needs else "", epochs=20)
    images = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)
    training = build.training(recipe, ROW, images, "cpu", images if needs else None)
    assert isinstance(training.objective, OBJECTIVES[name])
    owned = {id(p) for group in training.optimizer.param_groups for p in group["params"]}
    assert all(id(p) in owned for p in training.objective.parameters())  # VOS's and HOD's own parameters are trained


def test_an_objective_s_own_chance_comes_from_the_seed():
    def weight(seed):
        model = build.network(build.recipe(ROW, "vos"), ROW, "cpu")
        return build.loss(build.recipe(ROW, "vos", seed=seed), model).energy_weight

    assert torch.equal(weight(1), weight(1))
    assert not torch.equal(weight(1), weight(2))


def test_what_belongs_to_a_method_comes_with_it():
    def chosen(**arguments):
        recipe = build.recipe(ROW, **arguments)
        return recipe.lr_start, recipe.lr_hold_share, recipe.vote_share

    assert chosen(objective="moon-logitnorm") == (0.12, 0.2, 0.2)
    assert chosen(objective="logitnorm") == (0.1, 0.0, 0.0)
    assert chosen(objective="logitnorm", rates="moon", vote_share=0.2) == (0.12, 0.2, 0.2)
    assert chosen(objective="moon", topology="sup-tickets") == (0.1, 0.09, 0.09)  # three cycles of three epochs
    assert build.recipe(BENCHMARKS["cifar100"], "moon-logitnorm").objective_options == (("final", 2.0),)


def test_tickets_begin_after_the_cosine_and_vote_at_the_ends_of_their_cycles():
    recipe = build.recipe(ROW, "cross-entropy", topology="sup-tickets", epochs=20)
    assert (recipe.lr_cycles, recipe.vote_every, recipe.vote_from) == (3, 1, 17)
    recipe = build.recipe(ROW, "cross-entropy", topology="sup-tickets", epochs=40, vote_share=0.3)
    assert (recipe.vote_every, recipe.vote_from) == (4, 31)
    schedule = build.schedule(recipe, steps=400)
    assert [step for step in range(280, 400) if schedule.is_due(step)] == [280, 320, 360]
    rate = build.rate(recipe)
    assert rate(280 / 400) == pytest.approx(0.001)
    assert rate(300 / 400) == pytest.approx(0.005)


def test_cycles_are_as_long_as_the_rates_say_and_no_vote_is_no_vote():
    def chosen(**arguments):
        recipe = build.recipe(ROW, "moon", rates="tickets", **arguments)
        return recipe.lr_hold_share, recipe.vote_share, recipe.vote_from, recipe.vote_every

    assert chosen() == (0.09, 0.09, 93, 3)  # not MOON's own fifth
    assert chosen(vote_share=0.0) == (0.09, 0.0, None, 3)
    for epochs in range(6, 30):  # tickets never begin before the masks are at rest
        build.recipe(ROW, "cross-entropy", topology="sup-tickets", epochs=epochs)


def test_a_pattern_brings_its_sparsity():
    recipe = build.recipe(ROW, pattern="2:4")
    assert recipe.sparsity == 0.5
    model = build.network(recipe, ROW, "cpu")
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters(), 0.1), 100)
    assert topology.counts["fc.weight"] == model.fc.weight.numel() // 2
    assert topology.counts["body.0.weight"] == model.body[0].weight.numel()  # one input channel


def test_what_cannot_be_is_refused_before_the_first_step_and_leaves_no_trace():
    images = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)
    for objective, options, what in (
        ("vos", {"queue": 3}, "a batch of 128 does not fit queues of 3"),
        ("eow-softmax", {"layer": "nonsense"}, "has no module 'nonsense'"),
    ):
        with pytest.raises(ValueError, match=what):
            build.training(build.recipe(ROW, objective, options=options), ROW, images, "cpu")
    training = build.training(build.recipe(ROW, "vos"), ROW, images, "cpu")
    assert not training.objective.seen.any()
    assert training.model.training
    assert training.model.body[1].num_batches_tracked == 0
    assert build.training(build.recipe(ROW, "moon"), ROW, images, "cpu").objective.weight.beta.isnan()


def test_what_is_given_counts_more_than_the_preset():
    control = build.asked(ROW, {"preset": "control", "epochs": 10}, {})
    assert control == build.recipe(ROW, "cross-entropy", rates="moon", vote_share=0.2, epochs=10)
    assert build.asked(ROW, {"preset": "control", "rates": "plain", "epochs": 10}, {}).lr_start == 0.1
    ablated = build.asked(ROW, {"preset": "without-lm", "epochs": 10}, {"final": 0.5})
    assert dict(ablated.objective_options) == {"schedule": "final", "final": 0.5}


def test_votes_of_changing_masks_are_refused_without_data():
    with pytest.raises(
        ValueError, match=r"after 61 of 100 epochs.*masks change in the first 70; let the last 31 or fewer"
    ):
        build.recipe(ROW, "moon", vote_share=0.4)
    assert build.recipe(ROW, "moon", vote_share=0.3).vote_from == 70
    assert build.recipe(ROW, "moon", vote_share=0.31).vote_from == 69  # the first vote is cast at the end of its epoch
    assert build.recipe(ROW, "moon", vote_share=0.4, t_end_share=0.6).vote_from == 60
    for topology in ("static", "snip", "dense"):  # whose masks do not change
        assert build.recipe(ROW, "moon", vote_share=0.9, topology=topology).vote_from == 10


def test_the_best_preset_is_the_recipe_of_the_kept_runs():
    kept = Path(__file__).parents[2] / "results" / "cifar10-best"
    row = replace(BENCHMARKS["cifar10"], name="cifar10-part")
    for seed in (0, 1, 2):
        asked = build.asked(row, {"preset": "best", "seed": seed, "precision": "bfloat16"}, {})
        assert Recipe.load(kept / asked.name / "recipe.json") == asked


@pytest.mark.parametrize("name", build.TABLES["preset"])
def test_every_preset_is_a_recipe(name):
    assert build.asked(ROW, {"preset": name}, {}).objective in OBJECTIVES
