import json
import pickle
from dataclasses import replace

import pytest

from moon.data import BENCHMARKS
from moon.experiments import build
from moon.experiments.recipe import Recipe
from moon.training import DamagedCheckpoint
from moon.training.checkpoint import write_json

ROW = BENCHMARKS["digits"]


def test_a_recipe_is_re_created_from_its_file(tmp_path):
    recipe = build.recipe(ROW, "moon", options={"final": "2", "quiet_epochs": "3"}, seed=4)
    write_json(tmp_path / "recipe.json", recipe.to_json())
    assert Recipe.load(tmp_path / "recipe.json") == recipe
    assert recipe.objective_options == (("final", 2.0), ("quiet_epochs", 3))
    assert pickle.loads(pickle.dumps(recipe)) == recipe
    assert len({recipe, replace(recipe)}) == 1


def test_every_recipe_has_its_own_name():
    base = build.recipe(ROW)
    others = [replace(base, seed=1), replace(base, epochs=3), replace(base, objective_options={"final": 2.0})]
    assert len({base.name, *(other.name for other in others)}) == 4
    assert base.name.startswith("digits-rigl95-moon-s0-")
    assert build.recipe(ROW).name == base.name


def test_the_vote_is_the_last_fifth():
    assert build.recipe(ROW, epochs=100).vote_from == 80
    assert build.recipe(ROW, epochs=100, vote_share=0.0).vote_from is None
    assert build.recipe(ROW, epochs=2, options={"quiet_epochs": 1}).vote_from == 1  # one votes at least


def test_methods_bring_their_learning_rates_and_vote():
    plain, moon = build.recipe(ROW, "cross-entropy"), build.recipe(ROW, "moon")
    assert (plain.lr_start, plain.lr_end, plain.lr_hold_share, plain.vote_share) == (0.1, 1e-6, 0.0, 0.0)
    assert (moon.lr_start, moon.lr_end, moon.lr_hold_share, moon.vote_share) == (0.12, 0.008, 0.2, 0.2)
    control = build.recipe(ROW, "cross-entropy", rates="moon", vote_share=0.2)
    assert (control.lr_start, control.vote_share) == (0.12, 0.2)


def test_the_paper_s_final_weights():
    final = {name: dict(build.recipe(row).objective_options).get("final", 1.0) for name, row in BENCHMARKS.items()}
    assert final == {"digits": 1.0, "mnist": 0.01, "cifar10": 1.0, "cifar100": 2.0}
    assert build.recipe(BENCHMARKS["cifar100"], options={"final": "4"}).objective_options == (("final", 4.0),)


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"batch_size": 0},
        {"seed": -1},
        {"t_end_share": 1.2},
        {"vote_share": -0.1},
        {"precision": "float8"},
        {"weight_decay": -1.0},
        {"weight_decay": float("nan")},
        {"sparsity": 1.5},
        {"drop_fraction": 2.0},
        {"delta_t_steps": 0},
    ],
)
def test_wrong_values_are_refused(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong)).removeprefix("drop_").removesuffix("_steps")):
        build.recipe(ROW, **wrong)


def test_what_is_no_recipe_is_refused(tmp_path):
    path = tmp_path / "recipe.json"
    with pytest.raises(ValueError, match="is this a run folder"):
        Recipe.load(path)
    path.write_text("{")
    with pytest.raises(DamagedCheckpoint, match="is no recipe"):
        Recipe.load(path)
    path.write_text(json.dumps({"benchmark": "digits", "net": "lenet", "colour": "blue"}))
    with pytest.raises(DamagedCheckpoint, match="colour"):
        Recipe.load(path)
