"""Nets of timm and torchvision by name: made, trained from weights, resumed, captured, packed and scored."""

import json
import re
import shlex
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from moon import BenchmarkImages, Recipe, find_benchmark, load, make_recipe, moon_loss, open_head, train_run
from moon.cli.main import main, parser
from moon.data import DataSet, save
from moon.evidence import classifier_name
from moon.export.runtime import checked_graph
from moon.export.tracing import trace
from moon.nets import foreign, fused_blocks, resnet
from moon.objectives import CrossEntropy
from moon.recipe.registry import pick
from moon.sparse import Dense
from moon.training import CosineRate, Training
from moon.training.captured import capture_obstacle

timm = pytest.importorskip("timm", minversion="1.0")
torchvision = pytest.importorskip("torchvision")

CONVOLUTIONAL = [
    "timm:resnet18", "timm:resnet50.a1_in1k", "timm:mobilenetv3_small_100", "timm:efficientnet_b0",
    "timm:convnext_tiny", "torchvision:resnet18", "torchvision:mobilenet_v3_small", "torchvision:efficientnet_b0",
    "torchvision:convnext_tiny", "torchvision:regnet_y_400mf",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A data root with `mine`, three classes of 32x32 colour images, and `other`, unknown images."""
    root, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    colours = np.array([[200, 40, 40], [40, 200, 40], [40, 40, 200]])

    def images(labels, spread=30):
        noise = rng.normal(0, spread, (len(labels), 32, 32, 3))
        return np.clip(colours[labels][:, None, None] + noise, 0, 255).astype(np.uint8)

    for split, count in (("train", 36), ("test", 60)):
        labels = np.arange(count) % 3
        save(DataSet(images(labels), labels), root, "mine", split)
    save(DataSet(images(np.zeros(20, int), 120), np.zeros(20, int)), root, "other", "test")
    return root


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_a_net_has_the_classes_and_channels_of_the_benchmark(name, root):
    recipe = make_recipe(find_benchmark(root, "mine"), net=name)  # also without memory for the weights
    assert recipe.net == name
    model = pick("net", name)(num_classes=7, in_channels=1).eval()
    assert model(torch.zeros(2, 1, 32, 32)).shape == (2, 7)
    assert model.get_submodule(classifier_name(model)).out_features == 7


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "timm:resnet5",
            r"timm has no image classifier 'resnet5' \(did you mean 'resnet\d+d?'\?\); it has [\d,]+ models",
        ),
        ("timm:resnet50.a1_in2k", "timm has no weights 'a1_in2k' .did you mean 'a1_in1k'.* of resnet50"),
        ("timm:hf-hub:someone/net", "timm has no image classifier 'hf-hub:someone/net'"),
        ("timm:", "timm has no image classifier ''"),
        (
            "torchvision:mobilenet_v3_smal",
            r"torchvision has no image classifier 'mobilenet_v3_smal' \(did you mean 'mobilenet_v3_small'\?\)",
        ),
        ("torchvision:fcn_resnet50", "torchvision has no image classifier 'fcn_resnet50'"),
        ("torchvision:squeezenet1_0", "SqueezeNet has no Linear classifier"),
    ],
)
def test_a_name_that_cannot_be_used_is_explained(name, message, root):
    with pytest.raises(ValueError, match=message):
        make_recipe(find_benchmark(root, "mine"), net=name)


def moon(*arguments) -> None:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert not left.value.code


@pytest.fixture(scope="module")
def trained(root, tmp_path_factory):
    """A sparse mobilenet_v3_small of torchvision, fine-tuned by `moon train` from a file, and its command line."""
    home = tmp_path_factory.mktemp("runs")
    torch.manual_seed(3)
    weights = home / "weights.safetensors"
    save_file(pick("net", "torchvision:mobilenet_v3_small")(num_classes=1000, in_channels=3).state_dict(), weights)
    command = [
        "train", "mine", "--data", root, "--net", "torchvision:mobilenet_v3_small", "--pretrained", weights,
        "--optimizer", "adamw", "--backbone-lr-factor", "0.1", "--sparsity", "0.5", "--epochs", "4",
        "--batch-size", "12", "--objective", "cross-entropy", "--delta-t", "2", "--out", home / "run",
    ]  # fmt: skip
    moon(*command)
    return home / "run", command, weights


def test_fine_tuning_from_the_command_line(trained):
    folder, _, _ = trained
    result, recipe = (json.loads((folder / f"{name}.json").read_text()) for name in ("result", "recipe"))
    assert result["density"] == pytest.approx(0.5, abs=0.01)
    assert result["turnover"] > 0
    assert (recipe["optimizer"], recipe["first_mask"], recipe["backbone_lr_factor"]) == ("adamw", "magnitude", 0.1)
    assert load(folder)(torch.zeros(1, 3, 32, 32)).shape == (1, 3)


def test_another_file_is_refused_and_the_same_one_elsewhere_is_not(trained, capsys, tmp_path):
    _, command, weights = trained
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(weights.read_bytes())
    moon(*[moved if part == weights else part for part in command])
    save_file(pick("net", "torchvision:mobilenet_v3_small")(num_classes=1000, in_channels=3).state_dict(), moved)
    with pytest.raises(SystemExit) as left:
        main([str(moved if part == weights else part) for part in command])
    assert left.value.code
    assert "contains a run of another recipe (pretrained_sha256 was " in capsys.readouterr().err


def test_resuming_adamw_is_bit_identical(trained, root, tmp_path):
    folder, _, _ = trained
    recipe, images = Recipe.load(folder / "recipe.json"), BenchmarkImages.open(root, "mine")

    class Killed(Exception):
        pass

    def kill(record):
        if record["epoch"] == 2:
            raise Killed

    with pytest.raises(Killed):
        train_run(recipe, tmp_path / "run", images, checkpoint_seconds=0, on_epoch=kill)
    assert (
        train_run(recipe, tmp_path / "run", images)["model_sha256"] == train_run(recipe, folder, images)["model_sha256"]
    )


def test_it_is_scored_from_its_folder_and_from_its_weights_alone(trained, root, tmp_path, capsys):
    folder, _, _ = trained
    moon("score", folder, "--data", root, "--near", "other", "--detector", "msp", "ebo", "--out", tmp_path / "a")
    named = ["--net", "torchvision:mobilenet_v3_small", "--benchmark", "mine", "--data", root, "--near", "other"]
    checkpoint = ["score", "--checkpoint", folder / "model.safetensors", *named, "--detector", "msp", "ebo"]
    moon(*checkpoint, "--out", tmp_path / "b")
    one, other = (json.loads((tmp_path / part / "scores.json").read_text()) for part in "ab")
    assert one["detectors"] == other["detectors"]
    assert one["known"] == other["known"]
    assert (other["checkpoint"], other["net"]) == ("model.safetensors", "torchvision:mobilenet_v3_small")
    assert "model.safetensors" in capsys.readouterr().out


def steps_of(model: nn.Module, captured: bool) -> Training:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    parts = CrossEntropy(), Dense(optimizer), CosineRate(0.01, 0.01)
    return Training(model, optimizer, *parts, [], epochs=1, captured=captured)


@pytest.mark.parametrize("name", CONVOLUTIONAL)
def test_nothing_in_a_convolutional_net_prevents_captured_steps(name):
    with torch.device("meta" if "regnet" not in name else "cpu"):
        model = pick("net", name)(num_classes=4, in_channels=3)
    assert capture_obstacle(steps_of(model, captured=True).setup) is None


@pytest.mark.parametrize(
    "name",
    [
        "timm:resnet18", "timm:seresnet18", "timm:mobilenetv3_small_050", "torchvision:resnet50",
        "torchvision:efficientnet_b0", "torchvision:regnet_y_400mf",
    ],
)  # fmt: skip
def test_captured_steps_compute_what_plain_steps_do(name):
    """On a CPU the same code runs without a graph. Stochastic depth and dropout draw the same numbers in both."""
    torch.manual_seed(0)
    first = pick("net", name)(num_classes=4, in_channels=3).double().to(memory_format=torch.channels_last)
    x, y = torch.randn(8, 3, 32, 32).double().to(memory_format=torch.channels_last), torch.arange(8) % 4
    losses = []
    for model, captured in ((first, False), (deepcopy(first), True)):
        steps = steps_of(model.train(), captured)
        steps.begin()
        assert steps.is_captured is captured
        torch.manual_seed(2)
        losses.append([float(steps.step(x, y, 0, 0.01)) for _ in range(2)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("torchvision:resnet18", {}, 20),
        ("timm:resnet18", {}, 20),
        ("torchvision:resnext50_32x4d", {}, 53),
        ("timm:resnet50", {}, 53),
        ("timm:resnet50d", {}, 55),  # a stem of three convolutions
        ("timm:resnet18", {"drop_path_rate": 0.1}, 6),  # the stem, the first block, the shortcuts
        ("timm:resnet18", {"act_layer": nn.SiLU}, 3),  # the shortcuts
        ("timm:seresnet18", {}, 4),  # the stem, the shortcuts
        ("torchvision:vgg11_bn", {}, 8),
        ("torchvision:mobilenet_v2", {}, 52),
    ],
)
def test_batch_norms_are_computed_as_in_our_networks(name, options, count, monkeypatch):
    """Exactly those that no other layer separates from their residual sum and ReLU; the result is the same."""
    package, _, model_name = name.partition(":")
    make = timm.create_model if package == "timm" else torchvision.models.get_model
    torch.manual_seed(0)
    model = make(model_name, num_classes=4, **options).double()
    called = []
    for function in ("norm", "norm_relu"):
        original = getattr(foreign, function)
        for module in (foreign, resnet):
            monkeypatch.setattr(
                module, function, lambda layer, *rest, f=original: called.append(layer) or f(layer, *rest)
            )
    x = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    same = deepcopy(model)
    torch.manual_seed(1)
    expected = same(x)
    assert not called
    torch.manual_seed(1)
    with fused_blocks(model):
        found = model(x)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert len(called) == len(set(called)) == count
    for one, other in zip(model.buffers(), same.buffers(), strict=True):
        torch.testing.assert_close(one, other)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", ["timm:resnet50", "torchvision:mobilenet_v3_small"])
def test_the_runtime_gives_the_answers_of_pytorch(name):
    pytest.importorskip("moon_runtime")
    model = pick("net", name)(num_classes=4, in_channels=3)
    with torch.no_grad():
        for _ in range(3):  # BatchNorm statistics that differ from those of a new network
            model.train()(torch.randn(16, 3, 64, 64))
    checked_graph(model.eval(), (3, 64, 64))  # raises a ValueError if logits differ


def test_a_fine_tuned_net_is_packed_and_asked(trained, root, tmp_path, capsys):
    pytest.importorskip("moon_runtime")
    image = tmp_path / "red.png"
    Image.new("RGB", (32, 32), (200, 40, 40)).save(image)
    packed = tmp_path / "net.moon"
    how = [
        "--data",
        root,
        "--near",
        "other",
        "--detector",
        "msp",
        "--accept",
        "0.8",
        "--precision",
        "float32",
        "--force",
    ]
    moon("pack", trained[0], *how, "--out", packed)
    capsys.readouterr()
    moon("predict", packed, image, "--json")
    answer = json.loads(capsys.readouterr().out)
    benchmark, model = find_benchmark(root, "mine"), load(trained[0])
    mean, std = (torch.tensor(values)[:, None, None] for values in (benchmark.mean, benchmark.std))
    x = (torch.tensor([200, 40, 40])[:, None, None] / 255 - mean) / std
    temperature = load(packed).metadata["temperature"]  # fitted on the validation images
    p = (model(x.expand(1, 3, 32, 32)) / temperature).softmax(1)[0].detach()
    assert (answer["class"], answer["probability"]) == (str(int(p.argmax())), pytest.approx(float(p.max()), abs=1e-4))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("torchvision:convnext_tiny", "the operator 'aten.permute.default' is not supported"),
        ("torchvision:shufflenet_v2_x0_5", "a change of shape from .* is not supported"),
    ],
)
def test_an_operation_that_cannot_be_packed_is_named(name, message):
    with pytest.raises(ValueError, match=message):
        trace(pick("net", name)(num_classes=4, in_channels=3).eval(), (3, 64, 64))


def test_moon_trains_a_net_of_timm():
    """The loss has a gradient in every layer of a network with an open head."""
    model = open_head(pick("net", "timm:mobilenetv3_small_050")(num_classes=3, in_channels=3))
    moon_loss(model(torch.randn(6, 3, 32, 32)), torch.arange(6) % 3, 0.5).backward()
    assert all(p.grad is not None for p in model.parameters())
    assert isinstance(model.get_submodule(classifier_name(model)), nn.Linear)


DOCUMENT = (Path(__file__).parents[2] / "docs" / "nets.md").read_text()


def test_the_commands_of_the_documentation_parse():
    commands = re.findall(r"^    (moon .*)$", DOCUMENT, re.MULTILINE)
    assert len(commands) >= 8
    for command in commands:
        assert parser().parse_args(shlex.split(command)[1:]).act


def test_the_python_of_the_documentation_runs():
    pytest.importorskip("pytorch_ood", minversion="0.4")
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 8), nn.ReLU(), nn.Linear(8, 4))
    images = [(torch.randn(200, 3, 4, 4), torch.arange(200) % 4) for _ in range(2)]
    names = {"model": model, "images": images[0][0]}
    exec(block, names | dict.fromkeys(("train_loader", "validation_loader", "test_loader", "other_loader"), images))
