"""Weights to start from: what is loaded, what is refused, and what a recipe records."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from moon import open_head, resnet18, rotation_head
from moon.data import BENCHMARKS, open_set
from moon.nets import lenet, lenet_norm
from moon.recipe import Recipe, build, make_recipe
from moon.recipe.pretrained import load_pretrained, read_weights, weights_digest

DIGITS = BENCHMARKS["digits"]


@pytest.fixture
def weights(tmp_path):
    """A file of the weights of lenet-norm for 7 classes."""
    torch.manual_seed(5)
    path = tmp_path / "weights.safetensors"
    save_file(lenet_norm(7, 1).state_dict(), path)
    return path


def wrapped(state: dict) -> dict:
    return {"epoch": 3, "model": {f"module._orig_mod.{key}": value for key, value in state.items()}}


@pytest.mark.parametrize("form", ["safetensors", "state_dict", "wrapped"])
def test_all_forms_of_a_file_give_the_same_weights(tmp_path, form):
    state = lenet(10).state_dict()
    path = tmp_path / ("w.safetensors" if form == "safetensors" else "w.pth")
    if form == "safetensors":
        save_file(state, path)
    else:
        torch.save(wrapped(state) if form == "wrapped" else state, path)
    found = read_weights(path)
    assert found.keys() == state.keys()
    assert all(torch.equal(found[key], state[key]) for key in state)


def test_a_classifier_for_the_same_classes_is_loaded_and_another_one_is_not():
    old, same, other = lenet(10), lenet(10), lenet(3)
    before = other.fc.weight.clone()
    assert load_pretrained(same, old.state_dict(), "w.pth", "lenet") == []
    assert torch.equal(same.fc.weight, old.fc.weight)
    (reason,) = load_pretrained(other, old.state_dict(), "w.pth", "lenet")
    assert reason == "the classifier of w.pth has 10 outputs of 84 features, this network 3 of 84"
    assert torch.equal(other.fc.weight, before)
    assert torch.equal(other.body[0].weight, old.body[0].weight)


def test_an_open_head_takes_the_known_rows_or_all_of_them():
    closed, opened, model = lenet(10), open_head(lenet(10)), open_head(lenet(10))
    unknown = model.fc.weight[-1].clone()
    assert load_pretrained(model, closed.state_dict(), "w.pth", "lenet") == ["w.pth has no unknown output"]
    assert torch.equal(model.fc.weight[:-1], closed.fc.weight)
    assert torch.equal(model.fc.weight[-1], unknown)
    assert load_pretrained(model, opened.state_dict(), "w.pth", "lenet") == []
    assert torch.equal(model.fc.weight, opened.fc.weight)


def test_a_rotation_head_is_loaded_if_the_file_has_one():
    with_head, model = rotation_head(open_head(lenet(10))), rotation_head(open_head(lenet(10)))
    new = model.fc.rotation.weight.clone()
    opened = open_head(lenet(10))
    assert load_pretrained(model, opened.state_dict(), "w.pth", "lenet") == ["w.pth has no rotation head"]
    assert torch.equal(model.fc.weight, opened.fc.weight)
    assert torch.equal(model.fc.rotation.weight, new)
    assert load_pretrained(model, with_head.state_dict(), "w.pth", "lenet") == []
    assert torch.equal(model.fc.rotation.weight, with_head.fc.rotation.weight)


def test_weights_of_another_network_are_refused_in_one_line():
    state = dict(lenet_norm(10, 3).state_dict())
    del state["body.0.bias"]
    message = (
        r"w.pth: has no weights of net 'lenet' \(missing: body.0.bias, body.3.weight, body.3.bias, body.6.weight "
        r"and \d more; unexpected: .*; of another shape: body.0.weight \(6, 3, 5, 5\) instead of \(6, 1, 5, 5\)\)"
    )
    with pytest.raises(ValueError, match=message):
        load_pretrained(lenet(10), state, "w.pth", "lenet")


class Harmful:
    def __reduce__(self):
        return (Path("executed").touch, ())


def test_nothing_in_a_file_is_executed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": lenet().state_dict(), "harmful": Harmful()}, "w.pth")
    with pytest.raises(ValueError, match=r"w.pth: contains Python objects besides tensors, which could execute code"):
        read_weights(Path("w.pth"))
    Path("p.pth").write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(ValueError, match=r"p.pth: "):
        read_weights(Path("p.pth"))
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
def test_files_that_are_no_weights_are_named(tmp_path, name):
    path = tmp_path / name
    with pytest.raises(ValueError, match=rf"{name}: the weights cannot be read"):
        weights_digest(path)
    path.write_bytes(b"no weights at all")
    with pytest.raises(ValueError, match=rf"{name}: is"):
        read_weights(path)
    if name == "w.pth":
        torch.save([torch.zeros(2)], path)
        with pytest.raises(ValueError, match="is not a state_dict"):
            read_weights(path)


def test_a_recipe_records_the_digest_but_its_name_does_not_depend_on_the_path(weights, tmp_path):
    recipe = make_recipe(DIGITS, pretrained=str(weights))
    assert recipe.pretrained_sha256 == weights_digest(weights)
    assert (recipe.first_mask, recipe.lr_start, recipe.lr_end) == (
        "magnitude",
        pytest.approx(0.012),
        pytest.approx(8e-4),
    )
    moved = tmp_path / "elsewhere.safetensors"
    moved.write_bytes(weights.read_bytes())
    assert make_recipe(DIGITS, pretrained=str(moved)).name == recipe.name
    save_file(lenet_norm(7, 1).state_dict(), moved)  # other values
    assert make_recipe(DIGITS, pretrained=str(moved)).name != recipe.name
    with pytest.raises(ValueError, match=r"w.pth: the weights cannot be read"):
        make_recipe(DIGITS, pretrained=str(tmp_path / "w.pth"))
    with pytest.raises(ValueError, match="has no weights of net 'lenet'"):
        make_recipe(DIGITS, pretrained=str(weights), net="lenet")


def training_of(recipe: Recipe, small_set):
    return build.training(recipe, DIGITS, small_set, "cpu")


@pytest.fixture(scope="module")
def small_set():
    return open_set("nowhere", "digits", "train").take(slice(0, 64))


def test_training_starts_from_the_weights_of_largest_magnitude(weights, small_set, caplog):
    recipe = make_recipe(DIGITS, "cross-entropy", pretrained=str(weights), sparsity=0.9, batch_size=32)
    with caplog.at_level("INFO"):
        training = training_of(recipe, small_set)
    assert "has 7 outputs of 84 features, this network 10 of 84; a new one is trained" in caplog.text
    assert "the first masks keep the weights of largest magnitude" in caplog.text
    name, given = "body.4.weight", read_weights(weights)["body.4.weight"]
    mask, weight = training.masks[name], training.model.get_parameter(name)
    assert given.abs()[mask].min() >= given.abs()[~mask].max()
    assert torch.equal(weight.detach(), given * mask)
    random = training_of(replace(recipe, first_mask="random"), small_set)
    assert not torch.equal(random.masks[name], mask)


def test_a_file_that_changed_is_refused(weights, small_set):
    recipe = make_recipe(DIGITS, pretrained=str(weights), batch_size=32)
    save_file(lenet_norm(7, 1).state_dict(), weights)
    with pytest.raises(ValueError, match="is not the file that the run was started with"):
        training_of(recipe, small_set)


def test_the_backbone_learns_at_a_rate_of_its_own(small_set):
    recipe = make_recipe(DIGITS, "cross-entropy", topology="dense", batch_size=32, backbone_lr_factor=0.0, lr_start=0.1)
    training = training_of(recipe, small_set)
    before = {name: value.clone() for name, value in training.model.named_parameters()}
    x, y = next(iter(training.batches.epoch(0)))
    training.begin()
    training.step(x, y, 0, lr=0.1)
    changed = {name for name, value in training.model.named_parameters() if not torch.equal(value, before[name])}
    assert changed == {"fc.weight", "fc.bias"}
    assert sorted(group["lr"] for group in training.optimizer.param_groups) == [0.0, 0.1]
    names = [id(p) for group in training.optimizer.param_groups for p in group["params"]]
    assert sorted(names) == sorted(id(p) for p in training.model.parameters())
    training.captured = True
    with pytest.raises(ValueError, match="only SGD with one parameter group is supported"):
        training.begin()


def test_a_frozen_backbone_cannot_grow_weights():
    with pytest.raises(
        ValueError, match="the weights that RigL grows there would stay zero; use the topology 'static'"
    ):
        make_recipe(DIGITS, "cross-entropy", topology="rigl", backbone_lr_factor=0.0)
    assert make_recipe(DIGITS, "cross-entropy", topology="static", backbone_lr_factor=0.0)


def test_adamw_has_its_own_defaults_and_says_why_it_is_not_captured(small_set):
    recipe = make_recipe(DIGITS, "cross-entropy", optimizer="adamw", batch_size=32)
    assert (recipe.weight_decay, recipe.lr_start) == (0.05, pytest.approx(0.001))
    training = training_of(recipe, small_set)
    (group,) = training.optimizer.param_groups
    assert isinstance(training.optimizer, torch.optim.AdamW)
    assert group["betas"] == (0.9, 0.99)
    training.captured = True
    with pytest.raises(ValueError, match="steps cannot be captured: only SGD"):
        training.begin()


@pytest.mark.parametrize("setting", [{"optimizer": "adam"}, {"first_mask": "largest"}, {"backbone_lr_factor": -1.0}])
def test_wrong_values_are_refused(setting):
    with pytest.raises(ValueError, match=next(iter(setting))):
        make_recipe(DIGITS, **setting)
    with pytest.raises(ValueError, match="a dense network has no masks"):
        make_recipe(DIGITS, topology="dense", first_mask="magnitude")


def test_openood_names_are_those_of_its_checkpoints(tmp_path):
    """The keys of OpenOOD's ResNet18_32x32 and LeNet, which differ from ours."""
    model = resnet18(10)
    theirs = {key.replace("downsample", "shortcut"): value for key, value in model.state_dict().items()}
    assert "layer2.0.shortcut.0.weight" in theirs
    torch.save(theirs, tmp_path / "best.ckpt")
    found = read_weights(tmp_path / "best.ckpt", "openood:resnet18_32x32")
    assert found.keys() == model.state_dict().keys()
    net = nn.ModuleDict({
        "block1": nn.Sequential(nn.Conv2d(3, 6, 5)), "block2": nn.Sequential(nn.Conv2d(6, 16, 5)),
        "block3": nn.Sequential(nn.Conv2d(16, 120, 5)),
        "classifier": nn.Sequential(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    })  # fmt: skip
    torch.save(net.state_dict(), tmp_path / "lenet.ckpt")
    found = read_weights(tmp_path / "lenet.ckpt", "openood:lenet")
    assert load_pretrained(lenet(10, 3), found, "lenet.ckpt", "openood:lenet") == []
