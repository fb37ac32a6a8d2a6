"""Checkpoints of others: `moon score --checkpoint` gives the scores of a run with the same weights."""

import json
import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

from moon import BenchmarkImages, make_recipe, resnet18, score_run, train_run
from moon.cli.main import main
from moon.data import DataSet, save
from moon.evidence import OpenHead
from moon.results.temperatures import describe_temperatures
from moon.run import load
from moon.score import read_scores, score_checkpoint

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def images():
    return BenchmarkImages.open("data", "digits")


@pytest.fixture(scope="module")
def run(images, tmp_path_factory):
    """A run with LeNet, and one with an unknown output."""
    folders = {}
    for objective in ("cross-entropy", "moon"):
        folders[objective] = tmp_path_factory.mktemp("runs") / "run"
        recipe = make_recipe(
            "digits", objective, topology="static", net="lenet", epochs=1, batch_size=500, vote_share=0.0
        )
        train_run(recipe, folders[objective], images)
    return folders


def as_openood(folder) -> dict[str, torch.Tensor]:
    """The state_dict of a LeNet, with the names of OpenOOD's."""
    names = {"body.0.": "block1.0.", "body.3.": "block2.0.", "body.6.": "block3.0.", "body.10.": "classifier.0."}
    state = {}
    for key, value in load(folder).state_dict().items():
        for ours, theirs in {**names, "fc.": "classifier.2."}.items():
            if key.startswith(ours):
                state[theirs + key.removeprefix(ours)] = value
    return state


def test_a_checkpoint_in_openoods_layout_has_the_scores_of_its_run(run, images, tmp_path):
    torch.save(as_openood(run["cross-entropy"]), tmp_path / "best.ckpt")
    detectors = ["msp", "ebo", "knn", "ebo:scaled", "ebo:unscaled"]
    found, scores = score_checkpoint(
        tmp_path / "best.ckpt", "openood:lenet", images, detectors, out=tmp_path / "scores", keep_evidence=True
    )
    expected, _ = score_run(run["cross-entropy"], images, detectors)
    for key in ("detectors", "known", "known_scaled", "sha256", "near", "far"):
        assert found[key] == expected[key], key
    fitted = expected["temperatures"]["ebo:scaled"]
    unscaled = {"value": 1.0, "from": "the suffix :unscaled"}
    assumed = {"value": 1.0, "from": "assumed: a checkpoint does not say how its logits were scaled in training"}
    assert found["temperatures"] == {"ebo": assumed, "ebo:scaled": fitted, "ebo:unscaled": unscaled}
    text = describe_temperatures([found], ["ebo"])
    remark = "assumed for a checkpoint (if its logits were normalised in training, name detectors with :scaled)"
    assert text == f"Logits are divided by T = 1, {remark}: ebo"
    assert (found["checkpoint"], found["net"]) == ("best.ckpt", "openood:lenet")
    read = read_scores(tmp_path / "scores")
    assert read is not None
    assert np.array_equal(read[1]["msp"]["known"], scores["msp"]["known"])
    assert (tmp_path / "scores" / "evidence").is_dir()


def test_k_plus_one_outputs_are_those_of_an_open_head(run, images, tmp_path):
    torch.save(load(run["moon"]).state_dict(), tmp_path / "w.pth")
    assert isinstance(load(run["moon"]).fc, OpenHead)
    found, _ = score_checkpoint(tmp_path / "w.pth", "lenet", images, ["unknown"], out=tmp_path / "scores")
    expected, _ = score_run(run["moon"], images, ["unknown"])
    assert found["detectors"] == expected["detectors"]
    assert found["p_unknown"] == expected["p_unknown"]


def test_openoods_resnet18_has_its_names(tmp_path):
    """The shortcuts of OpenOOD's ResNet18_32x32 are called `shortcut`; the answers are those of our ResNet-18."""
    rng = np.random.default_rng(0)
    for name, split in (("mine", "train"), ("mine", "test"), ("other", "test")):
        labels = np.arange(20) % 2 if name == "mine" else np.zeros(20, int)
        save(DataSet(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), labels), tmp_path, name, split)
    model = resnet18(2).eval()
    state = {key.replace(".downsample.", ".shortcut."): value for key, value in model.state_dict().items()}
    torch.save(state, tmp_path / "best.ckpt")
    images = BenchmarkImages.open(tmp_path, "mine", near=("other",))
    net = "openood:resnet18_32x32"
    found, scores = score_checkpoint(tmp_path / "best.ckpt", net, images, ["mls"], out=tmp_path / "scores")
    logits = images.evidence(model, images.unknown["other"]).logits
    np.testing.assert_allclose(scores["mls"]["other"], logits.amax(1).numpy(), rtol=1e-4)
    assert list(found["detectors"]["mls"]["sets"]) == ["other"]


def test_a_checkpoint_of_another_width(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, split in (("mine", "train"), ("mine", "test"), ("other", "test")):
        labels = np.arange(20) % 2 if name == "mine" else np.zeros(20, int)
        save(DataSet(rng.integers(0, 256, (20, 32, 32, 3), np.uint8), labels), tmp_path, name, split)
    model = resnet18(2, width=0.125).eval()
    torch.save(model.state_dict(), tmp_path / "narrow.pth")
    arguments = ["--checkpoint", tmp_path / "narrow.pth", "--net", "resnet18", "--benchmark", "mine", "--near", "other"]
    arguments += ["--data", tmp_path, "--out", tmp_path / "scores", "--detector", "mls"]
    assert "name their net (--net, --width)" in refused(capsys, *arguments)
    with pytest.raises(SystemExit) as left:
        main(["score", *map(str, arguments), "--width", "0.125"])
    assert not left.value.code
    _, scores = read_scores(tmp_path / "scores")
    images = BenchmarkImages.open(tmp_path, "mine", near=("other",))
    logits = images.evidence(model, images.unknown["other"]).logits
    np.testing.assert_allclose(scores["mls"]["other"], logits.amax(1).numpy(), rtol=1e-4)


def refused(capsys, *arguments) -> str:
    with pytest.raises(SystemExit) as left:
        main(["score", *map(str, arguments)])
    assert left.value.code
    return capsys.readouterr().err


def test_the_command_line(run, tmp_path, capsys):
    torch.save(as_openood(run["cross-entropy"]), tmp_path / "best.ckpt")
    command = ["--checkpoint", tmp_path / "best.ckpt", "--net", "openood:lenet", "--detector", "msp"]
    with pytest.raises(SystemExit) as left:
        main(["score", *map(str, command), "--benchmark", "digits", "--out", str(tmp_path / "scores")])
    assert not left.value.code
    assert "best.ckpt" in capsys.readouterr().out
    assert list(json.loads((tmp_path / "scores" / "scores.json").read_text())["detectors"]) == ["msp"]
    assert refused(capsys, *command).endswith("a checkpoint also needs --benchmark, --out\n")
    assert "give run folders or a checkpoint, not both" in refused(capsys, run["moon"], *command)
    assert "name a run folder, or a checkpoint" in refused(capsys)
    assert "--net is for a checkpoint" in refused(capsys, run["moon"], "--net", "lenet")


def test_what_does_not_fit_is_refused_before_anything_is_written(run, images, tmp_path):
    def score(state, net="lenet", out="scores"):
        torch.save(state, tmp_path / "w.pth")
        return score_checkpoint(tmp_path / "w.pth", net, images, ["msp"], out=tmp_path / out)

    state = dict(load(run["cross-entropy"]).state_dict())
    with pytest.raises(ValueError, match=r"w.pth: has no weights of net 'resnet18' \(missing: conv1.weight, "):
        score(state, "resnet18")
    more = state | {"fc.weight": torch.zeros(7, 84), "fc.bias": torch.zeros(7)}
    with pytest.raises(ValueError, match=r"has 7 outputs .* digits has 10 known classes, so this network cannot be"):
        score(more)
    with pytest.raises(ValueError, match=r"unknown net 'lenett' \(did you mean 'lenet'"):
        score(state, "lenett")
    torch.save(nn.Linear(2, 2), tmp_path / "w.pth")  # a pickled object
    with pytest.raises(ValueError, match="contains Python objects besides tensors"):
        score_checkpoint(tmp_path / "w.pth", "lenet", images, ["msp"], out=tmp_path / "scores")
    assert not (tmp_path / "scores").exists()
    score(state)
    with pytest.raises(ValueError, match="contains the scores of another model"):
        score(state | {"fc.bias": torch.ones(10)})


def relu(num_classes: int, in_channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, 16), nn.ReLU(), nn.Linear(16, num_classes))


def tanh(num_classes: int, in_channels: int = 3) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784 * in_channels, 16), nn.Tanh(), nn.Linear(16, num_classes))


def test_two_networks_with_the_same_weights_are_told_apart(images, tmp_path, monkeypatch):
    """The evidence that is kept belongs to the network, not only to the file of its weights."""
    module = ModuleType("two_nets")
    module.relu, module.tanh = relu, tanh
    monkeypatch.setitem(sys.modules, "two_nets", module)
    torch.save(relu(10, images.benchmark.channels).state_dict(), tmp_path / "weights.pth")
    settings = {"out": tmp_path / "scores", "keep_evidence": True}
    score_checkpoint(tmp_path / "weights.pth", "two_nets:relu", images, ["msp"], **settings)
    with pytest.raises(ValueError, match="contains the scores of another model"):
        score_checkpoint(tmp_path / "weights.pth", "two_nets:tanh", images, ["msp"], **settings)
    (tmp_path / "scores" / "scores.json").unlink()
    found, _ = score_checkpoint(tmp_path / "weights.pth", "two_nets:tanh", images, ["msp"], **settings)
    alone, _ = score_checkpoint(tmp_path / "weights.pth", "two_nets:tanh", images, ["msp"], out=tmp_path / "alone")
    assert found["detectors"] == alone["detectors"]
