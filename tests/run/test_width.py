"""Networks of other widths: their sizes, their FLOPs, and a run from training to answers."""

import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import moon
from moon.data import BENCHMARKS
from moon.deploy.calibration import Guarantee
from moon.deploy.packing import pack_run
from moon.nets import NETS, resnet18, resnet18_imagenet, resnet50
from moon.recipe import make_recipe
from moon.recipe.labels import labels
from moon.run.folder import load
from moon.run.images import BenchmarkImages
from moon.run.train import train_run
from moon.score import score_run
from moon.sparse import sparse_weights
from moon.sparse.flops import layer_costs, net_cost


def parameters(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("make", [resnet18, resnet18_imagenet, resnet50])
def test_width_is_a_factor_of_every_number_of_channels(make):
    with torch.device("meta"):
        plain, same, wide = make(10), make(10, width=1), make(10, width=1.5)
    assert [p.shape for p in plain.parameters()] == [p.shape for p in same.parameters()]
    for (name, before), after in zip(plain.named_parameters(), wide.parameters(), strict=True):
        factor = [1.0 if name == "fc.bias" else 1.5, 1.0 if name == "conv1.weight" else 1.5]
        if name == "fc.weight":
            factor = [1.0, 1.5]
        sizes = [round(size * by) for size, by in zip(before.shape, factor, strict=False)]
        assert list(after.shape[: len(sizes)]) == sizes


def test_numbers_of_parameters():
    with torch.device("meta"):
        assert parameters(resnet18(10)) == 11_173_962
        assert parameters(resnet18(10, width=2)) == 44_662_922
        assert parameters(resnet18(10, width=0.5)) == 2_797_610
        # The wide and sparse one has about as many weights as the other at 95%.
        wide, plain = (sum(w.numel() for w in sparse_weights(resnet18(10, width=w)).values()) for w in (2, 1))
    assert 0.013 * wide == pytest.approx(0.05 * plain, rel=0.05)


def test_flops_grow_with_the_square_of_the_width():
    shape = (3, 16, 16)
    plain, wide = (layer_costs(resnet18(10, width=width), shape, {}) for width in (0.125, 0.25))
    for name in plain:
        factor = 2 if name in ("conv1.weight", "fc.weight", "conv1", "fc") else 4
        assert wide[name].dense == factor * plain[name].dense
    assert net_cost(wide).dense == sum(layer.dense for layer in wide.values())


@pytest.mark.parametrize("width", [1.3, 0.1, 1 / 3])
def test_channels_that_are_not_multiples_of_8_are_an_error(width):
    with pytest.raises(ValueError, match=r"channels in the first stage, which must be a multiple of 8; use a multiple"):
        make_recipe("digits", net="resnet18", width=width)


def narrow(num_classes, in_channels):
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, num_classes))


def adjustable(num_classes, in_channels, width=1):
    hidden = round(16 * width)
    return nn.Sequential(nn.Flatten(), nn.Linear(64 * in_channels, hidden), nn.ReLU(), nn.Linear(hidden, num_classes))


def test_nets_without_a_width_are_named_and_others_get_it(monkeypatch):
    module = types.ModuleType("nets_of_a_user")
    module.narrow, module.adjustable = narrow, adjustable
    monkeypatch.setitem(sys.modules, "nets_of_a_user", module)
    for net in ("lenet", "lenet-norm", "nets_of_a_user:narrow"):
        with pytest.raises(
            ValueError, match=f"net '{net}' has no argument width, so width=2 cannot be used; use .*50 or"
        ):
            make_recipe("digits", net=net, width=2)
    recipe = make_recipe("digits", "cross-entropy", net="nets_of_a_user:adjustable", width=2.5)
    model = moon.recipe.build.network(recipe, BENCHMARKS["digits"], "cpu")
    assert model[1].out_features == 40
    assert {name for name in NETS if "width" in NETS[name].__annotations__} == {
        "resnet8", "resnet18", "resnet18-imagenet", "resnet50",
    }  # fmt: skip


@pytest.mark.slow
def test_a_run_of_another_width_is_trained_scored_packed_and_answers(data_root, tmp_path):
    images = BenchmarkImages.open(data_root, "mnist")
    settings = {"net": "resnet18", "epochs": 1, "batch_size": 64, "topology": "static", "sparsity": 0.9}
    recipe = make_recipe(images.benchmark, "cross-entropy", width=0.125, **settings)
    plain = make_recipe(images.benchmark, "cross-entropy", **settings)
    assert recipe.name != plain.name
    assert labels([recipe, plain])[recipe.name] == "cross-entropy width=0.125"
    result = train_run(recipe, tmp_path / "run", images)

    model = load(tmp_path / "run")
    assert model.fc.in_features == 64
    weights = sparse_weights(model)
    total = sum(w.numel() for w in weights.values())
    assert result["density"] == pytest.approx(0.1, abs=0.005)
    assert sum(int((w != 0).sum()) for w in weights.values()) == pytest.approx(result["density"] * total, abs=20)
    dense = net_cost(layer_costs(resnet18(10, 1, width=0.125), (1, 28, 28), {})).dense
    assert result["flops"]["inference_dense"] == dense
    assert 0 < result["flops"]["inference"] < 0.5 * dense
    assert result["flops"]["training"] > 3 * 256 * result["flops"]["inference"] * 0.99

    score_run(tmp_path / "run", images, ["msp"])
    pack_run(
        tmp_path / "run", images, tmp_path / "net.moon", "msp", Guarantee(accept=0.5), precision="float32", force=True
    )
    answers = moon.load(tmp_path / "net.moon")(images.splits["test"].images)
    evidence = images.evidence(model, images.splits["test"])
    assert np.mean(answers.label == evidence.prediction.numpy()) > 0.98

    taught = make_recipe(
        images.benchmark, "distill", teachers=str(tmp_path / "run"), net="lenet-norm", epochs=1, batch_size=64,
        topology="static",
    )  # fmt: skip
    assert train_run(taught, tmp_path / "taught", images)["flops"]["training"] > 256 * result["flops"]["inference"]
