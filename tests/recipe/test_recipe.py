import json
import pickle
import re
from dataclasses import dataclass, replace

import numpy as np
import pytest

from moon.data import BENCHMARKS
from moon.files import write_json
from moon.recipe import PARAMETERS, Recipe, build, make_recipe
from moon.training import DamagedCheckpoint

DIGITS = BENCHMARKS["digits"]


def test_a_recipe_can_be_loaded_from_its_file(tmp_path):
    recipe = make_recipe(DIGITS, "moon", options={"final": "2", "quiet_epochs": "3"}, seed=4)
    write_json(tmp_path / "recipe.json", recipe.to_json())
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    assert recipe.objective_options == (("final", 2.0), ("quiet_epochs", 3))
    assert make_recipe(DIGITS, "moon", objective_options=recipe.objective_options, seed=4) == recipe
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert len({recipe, replace(recipe)}) == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 2.5}, "epochs must be an integer, not 2.5"),
        ({"epochs": True}, "epochs must be an integer, not True"),
        ({"sparsity": "0.9"}, "sparsity must be a number, not '0.9'"),
        ({"nesterov": "no"}, "nesterov must be True or False, not 'no'"),
    ],
)
def test_numbers_of_the_wrong_type_are_rejected(settings, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make_recipe(DIGITS, **settings)


def test_numbers_of_numpy_are_accepted():
    recipe = make_recipe(DIGITS, seed=np.int64(1), epochs=np.int32(3), sparsity=np.float64(0.5))
    assert recipe == make_recipe(DIGITS, seed=1, epochs=3, sparsity=0.5)
    assert json.dumps(recipe.to_json())


def test_different_recipes_have_different_names():
    base = make_recipe(DIGITS)
    others = [replace(base, seed=1), replace(base, epochs=3), replace(base, objective_options={"final": 2.0})]
    assert len({base.name, *(other.name for other in others)}) == 4
    assert base.name.startswith("digits-rigl95-moon-s0-")
    assert make_recipe(DIGITS).name == base.name


def test_the_last_fifth_of_the_epochs_votes():
    assert make_recipe(DIGITS, epochs=100).vote_from == 80
    assert make_recipe(DIGITS, epochs=100, vote_share=0.0).vote_from is None
    assert make_recipe(DIGITS, epochs=2, options={"quiet_epochs": 1}).vote_from == 1  # at least one epoch votes


def voting(recipe: Recipe) -> list[int]:
    return list(range(recipe.vote_from, recipe.epochs, recipe.vote_every))


@pytest.mark.parametrize(
    ("given", "epochs"),
    [
        ({"epochs": 10}, [7, 8, 9]),
        ({"epochs": 50}, [45, 47, 49]),
        ({"epochs": 100}, [93, 96, 99]),
        ({"epochs": 250}, [233, 241, 249]),
        ({"epochs": 100, "vote_share": 0.2}, [85, 92, 99]),
    ],
)
def test_with_cycles_the_last_epoch_of_each_cycle_votes(given, epochs):
    recipe = make_recipe(DIGITS, topology="sup-tickets", **given)
    assert voting(recipe) == epochs
    assert recipe.vote_share == recipe.lr_hold_share == pytest.approx(3 * recipe.vote_every / recipe.epochs)


def test_a_ticket_starts_and_ends_at_the_lowest_rate():
    recipe = make_recipe(DIGITS, "cross-entropy", topology="sup-tickets", epochs=100)
    assert (recipe.lr_start, recipe.lr_end, recipe.lr_cycles, recipe.lr_peak) == (0.1, 0.001, 3, 0.005)
    schedule, rate = build.schedule(recipe, 1100), build.rate(recipe)
    starts = [step for step in range(1100) if schedule.begins_ticket(step)]
    assert starts == [1001, 1034, 1067]  # epochs 91, 94 and 97 of 11 steps
    assert schedule.end == 1100
    assert [rate(step / 1100) for step in (*starts, 1100)] == pytest.approx(4 * [0.001])
    assert [rate((step + 16.5) / 1100) for step in starts] == pytest.approx(3 * [0.005])


def test_learning_rates_and_votes_come_from_the_method():
    plain, moon = make_recipe(DIGITS, "cross-entropy"), make_recipe(DIGITS, "moon")
    assert (plain.lr_start, plain.lr_end, plain.lr_hold_share, plain.vote_share) == (0.1, 1e-6, 0.0, 0.0)
    assert (moon.lr_start, moon.lr_end, moon.lr_hold_share, moon.vote_share) == (0.12, 0.008, 0.2, 0.2)
    control = make_recipe(DIGITS, "cross-entropy", rates="moon", vote_share=0.2)
    assert (control.lr_start, control.vote_share) == (0.12, 0.2)


def test_the_paper_s_final_weights():
    final = {name: dict(make_recipe(b).objective_options).get("final", 1.0) for name, b in BENCHMARKS.items()}
    assert {name: final[name] for name in ("digits", "mnist", "cifar10", "cifar100")} == {
        "digits": 1.0, "mnist": 0.01, "cifar10": 1.0, "cifar100": 2.0,
    }  # fmt: skip
    assert (final["cifar100-v1.5"], final["mnist-v1"], final["imagenet-v1"]) == (2.0, 0.01, 0.001)
    assert make_recipe(BENCHMARKS["cifar100"], options={"final": "4"}).objective_options == (("final", 4.0),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"seed": -1},
        {"t_end_share": 1.2},
        {"vote_share": -0.1},
        {"precision": "float8"},
        {"weight_decay": float("nan")},
        {"sparsity": 1.5},
        {"drop_fraction": 2.0},
        {"delta_t_steps": 0},
    ],
)
def test_invalid_values_are_rejected(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).removeprefix("drop_").removesuffix("_steps")):
        make_recipe(DIGITS, **wrong)


def test_epochs_are_bounded():
    assert make_recipe(DIGITS, epochs=1_000_000).epochs == 1_000_000
    with pytest.raises(ValueError, match=r"epochs=1,000,000,000,000 must be at most 1,000,000 \(epochs\)"):
        make_recipe(DIGITS, epochs=10**12)


@pytest.mark.parametrize("topology", ["rigl", "set", "static", "snip", "gmp"])
def test_a_sparse_topology_needs_a_sparsity(topology):
    with pytest.raises(ValueError, match=r"with sparsity=0 would leave no weight at zero; .* or Dense"):
        make_recipe(DIGITS, topology=topology, sparsity=0.0)


def test_a_fraction_of_0_is_rejected_where_nothing_would_change():
    with pytest.raises(ValueError, match=r"RigL would never replace a weight, .*drop_fraction\) is 0; .* Static"):
        make_recipe(DIGITS, topology="rigl", drop_fraction=0.0)
    for topology in ("gmp", "granet", "static", "sup-tickets"):  # they prune, never rewire, or have another fraction
        assert make_recipe(DIGITS, topology=topology, drop_fraction=0.0).drop_fraction == 0


def test_files_that_are_not_recipes_are_rejected(tmp_path):
    path = tmp_path / "recipe.json"
    with pytest.raises(ValueError, match="is this a run folder"):
        Recipe.load(path)
    path.write_text("{")
    with pytest.raises(DamagedCheckpoint, match="is not a recipe"):
        Recipe.load(path)
    path.write_text(json.dumps({"benchmark": "digits", "net": "lenet", "colour": "blue"}))
    with pytest.raises(DamagedCheckpoint, match="has the setting 'colour', which this version of moon does not know"):
        Recipe.load(path)


def test_run_names_are_stable():
    assert make_recipe(DIGITS).name == "digits-rigl95-moon-s0-c7b7e516"


def test_adding_a_field_renames_no_run():
    @dataclass(frozen=True, kw_only=True)
    class Later(Recipe):
        dropout: float = 0.0

    recipe = make_recipe(DIGITS)
    later = Later(**recipe.to_json())
    assert later.name == recipe.name
    assert replace(later, dropout=0.1).name != recipe.name


def test_parameters_are_declared_once():
    settings = {parameter.setting for parameter in PARAMETERS.values()}
    assert settings - {"preset", "rates"} <= Recipe.__dataclass_fields__.keys()
    assert PARAMETERS["delta_t"].type is int
    assert PARAMETERS["lr"].setting == "lr_start"


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"net": 5}, "net is 5, expected a text"), ({"seed": True}, "seed is True, expected a whole number")],
)
def test_a_recipe_file_with_other_types_is_damaged(tmp_path, change, problem):
    recipe = make_recipe("digits", epochs=5)
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_json()))
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    (tmp_path / "recipe.json").write_text(json.dumps(recipe.to_json() | change))
    with pytest.raises(DamagedCheckpoint, match=problem):
        Recipe.load(tmp_path / "recipe.json")
