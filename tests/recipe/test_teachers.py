"""Runs that learn from the networks of other runs."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from moon import Distill, LogitNorm, make_recipe
from moon.data import BENCHMARKS, DataSet
from moon.errors import DamagedCheckpoint
from moon.recipe import Recipe, build
from moon.run.folder import _check_same
from moon.run.train import flops
from moon.sparse.flops import layer_costs, net_cost
from moon.training.checkpoint import load_tensors

DIGITS = BENCHMARKS["digits"]
IMAGES = DataSet(np.zeros((40, 28, 28, 1), np.uint8), np.arange(40) % 10)


@pytest.fixture
def folders(untrained_run, tmp_path):
    """Two runs, copied for each test."""
    made = [untrained_run(objective="moon-logitnorm", options={"temperature": 0.1}), untrained_run(seed=1)]
    return [shutil.copytree(folder, tmp_path / folder.name) for folder in made]


def recipe_of(folders, **settings):
    return make_recipe(
        DIGITS, "distill+moon", teachers=",".join(map(str, folders)), epochs=20, topology="static", **settings
    )


def test_teachers_are_loaded_from_their_folders(folders):
    training = build.training(recipe_of(folders), DIGITS, IMAGES, "cpu")
    objective = training.objective
    assert isinstance(objective, Distill)
    first, second = objective.teachers
    assert torch.equal(first.model.fc.weight, load_tensors(folders[0] / "model.safetensors")["fc.weight"])
    assert isinstance(first.objective, LogitNorm)
    assert first.objective.temperature == 0.1
    assert first(torch.randn(2, 1, 28, 28)).norm(dim=1).tolist() == pytest.approx([10, 10], rel=1e-4)
    assert second.model.fc.out_features == 10
    assert first.precision == second.precision == torch.float32
    assert not any(name.startswith("teacher") for name in objective.state_dict())
    updated = sum(len(group["params"]) for group in training.optimizer.param_groups)
    assert updated == len(list(training.model.parameters()))


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")  # a CPU without bfloat16 warns once
def test_teachers_compute_in_the_precision_of_the_run(folders):
    x, results = torch.randn(2, 1, 28, 28), {}
    for precision in ("float32", "bfloat16"):
        training = build.training(recipe_of(folders, precision=precision, batch_size=4), DIGITS, IMAGES, "cpu")
        results[precision] = training.objective.teachers[1](x)
    assert not torch.equal(*results.values())
    torch.testing.assert_close(*results.values(), rtol=5e-2, atol=5e-2)


def test_the_forward_passes_of_teachers_count_as_training(folders):
    recipe = recipe_of(folders)
    training = build.training(recipe, DIGITS, IMAGES, "cpu")
    found = flops(training.model, recipe, SimpleNamespace(benchmark=DIGITS, splits={"train": IMAGES}), training)
    teachers = [net_cost(layer_costs(teacher, (1, 28, 28), {})).dense for teacher in training.objective.networks]
    own, share = 3 * found["inference"], found["training"] / (recipe.epochs * len(IMAGES.labels))
    assert own < share <= own + sum(teachers)


def test_a_recipe_is_bound_to_the_weights_and_not_to_the_place(folders, tmp_path):
    recipe = recipe_of(folders)
    moved = [shutil.copytree(folder, tmp_path / "elsewhere" / folder.name) for folder in folders]
    assert recipe_of(moved).name == recipe.name
    assert recipe_of(moved).teachers_sha256 == recipe.teachers_sha256
    _check_same(tmp_path, recipe, recipe_of(moved))
    assert recipe_of(folders[:1]).name != recipe.name
    assert Recipe(**json.loads(json.dumps(recipe.to_json()))) == recipe


def test_a_run_is_not_resumed_with_other_teachers(folders, untrained_run, tmp_path):
    recipe = recipe_of(folders)
    other = untrained_run(seed=2)
    with pytest.raises(ValueError, match=r"another recipe \(teachers_sha256 was .*, now .*\)"):
        _check_same(tmp_path, recipe, recipe_of([folders[0], other]))
    for name in ("recipe.json", "model.safetensors", "result.json"):  # another run in the same place
        shutil.copy(other / name, folders[1] / name)
    with pytest.raises(ValueError, match="are not the teachers that the run was started with"):
        build.training(recipe, DIGITS, IMAGES, "cpu")


def test_what_cannot_teach_is_refused_in_one_line(folders, untrained_run, tmp_path):
    with pytest.raises(ValueError, match="teachers=',' names no run folder"):
        make_recipe(DIGITS, "distill", teachers=",")
    with pytest.raises(ValueError, match=r"learns from trained networks; name their run folders \(teachers\)"):
        make_recipe(DIGITS, "distill")
    with pytest.raises(ValueError, match="'moon' takes no teachers"):
        make_recipe(DIGITS, "moon", teachers=str(folders[0]))
    with pytest.raises(ValueError, match=r"contains no recipe\.json; is this a run folder"):
        recipe_of([tmp_path / "nothing"])
    with pytest.raises(ValueError, match="knows the classes of mnist, but the run is on digits"):
        recipe_of([untrained_run("mnist")])
    (folders[0] / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(DamagedCheckpoint, match="is not the model this run wrote, so it cannot teach"):
        recipe_of(folders)
    (folders[0] / "result.json").unlink()
    with pytest.raises(ValueError, match="is not finished, so it cannot teach"):
        recipe_of(folders)
