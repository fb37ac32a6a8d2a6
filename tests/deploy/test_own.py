"""`moon.pack` writes for any network the file that `pack_run` writes for a run."""

import numpy as np
import pytest
import torch
from torch import nn

import moon
from moon import Batches, Guarantee, pack, pack_run
from moon.run.folder import load as load_run

HALF = Guarantee(accept=0.5)
SCALE = {"mean": [0.5], "std": [0.5]}
DIGITS = [*"0123456789"]


@pytest.fixture
def loaders(images):
    """Loaders of the training and the validation images."""
    return {
        name: Batches(images.splits[split], [0.5], [0.5], batch_size=64)
        for name, split in (("train", "train"), ("validation", "val"))
    }


def test_a_model_and_its_run_give_the_same_file(trained_runs, images, loaders, tmp_path):
    folder, sets = trained_runs(epochs=6, options={"quiet_epochs": 1}), images.unknown
    of_run = pack_run(folder, images, tmp_path / "run.moon", "auto", HALF)
    unknown = {name: Batches(data, [0.5], [0.5]) for name, data in sets.items()}
    near = {name: unknown.pop(name) for name in images.benchmark.near if name in unknown}
    model = load_run(folder).train()
    of_model = pack(
        model, tmp_path / "own.moon", classes=DIGITS, **loaders, **SCALE, guarantee=HALF, near=near, far=unknown,
        test=Batches(images.splits["test"], [0.5], [0.5]),
    )  # fmt: skip
    assert model.training
    assert of_model["detector"] == of_run["detector"] == "layers"
    assert of_model["threshold"]["values"] == pytest.approx(of_run["threshold"]["values"], abs=1e-5)
    for name, row in of_run["measured"].items():
        assert of_model["measured"][name] == pytest.approx(row, abs=1e-5)
    assert of_model["rejection"] == of_run["rejection"]
    first, second = (moon.load(tmp_path / name) for name in ("run.moon", "own.moon"))
    assert first.classes == second.classes
    for part in (images.splits["test"], *sets.values()):
        mine, theirs = first(np.resize(part.images, (20, 28, 28, 1))), second(np.resize(part.images, (20, 28, 28, 1)))
        assert np.allclose(mine.score, theirs.score, atol=1e-5)
        assert mine.label.tolist() == theirs.label.tolist()


class Named(nn.Module):
    """A network that takes and returns what those of Hugging Face do."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, pixel_values):
        return {"logits": self.inner(pixel_values)}


def test_batches_and_outputs_may_be_mappings(trained_runs, images, loaders, tmp_path):
    inner = load_run(trained_runs(epochs=6, options={"quiet_epochs": 1}))
    mappings = {key: [{"pixel_values": x, "labels": y} for x, y in loader] for key, loader in loaders.items()}
    more = {"classes": DIGITS, "guarantee": HALF, "detector": "mls", "checked": 0, **SCALE}
    plain = pack(inner, tmp_path / "a.moon", **loaders, **more)
    named = pack(Named(inner), tmp_path / "b.moon", **mappings, **more)
    assert named["threshold"] == plain["threshold"]


def test_an_image_classifier_of_hugging_face_is_packed(loaders, images, tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        num_channels=1, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=10
    )
    model = transformers.ResNetForImageClassification(config)
    batches = {key: [{"pixel_values": x, "labels": y} for x, y in loader] for key, loader in loaders.items()}
    pack(
        model, tmp_path / "hf.moon", classes=DIGITS, **batches, **SCALE, guarantee=HALF, detector="mls", force=True,
        checked=0, precision="float32",
    )  # fmt: skip
    x = next(iter(Batches(images.splits["test"], [0.5], [0.5])))[0]
    with torch.no_grad():
        expected = model.eval()(x).logits.argmax(1)
    assert moon.load(tmp_path / "hf.moon")(images.splits["test"].images).label.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"mean": [0.1]},
            "validation: input [*] std [+] mean is between -0.4 and 0.5.*, but pixels are between 0 and 1",
        ),
        (
            {"mean": [0.5] * 3, "std": [0.5] * 3},
            "validation: the loader yields inputs of shape .*mean and std have one",
        ),
        ({"classes": ["a", "b"]}, "2 classes are named, but ResNet has 10 known outputs|2 classes are named, but"),
        ({"validation": [torch.zeros(20, 1, 28, 28)]}, r"validation: the loader must yield \(images, labels\)"),
        ({"validation": []}, "validation: the loader yields no batch"),
    ],
)
def test_what_does_not_fit_together_is_refused(changed, message, loaders, tmp_path):
    model = moon.lenet(10)
    given = {"classes": DIGITS, **loaders, **SCALE, "guarantee": HALF}
    with pytest.raises(ValueError, match=message):
        pack(model, tmp_path / "own.moon", **given | changed)
    assert not (tmp_path / "own.moon").exists()


def test_pixels_that_are_rounded_are_said(loaders, tmp_path, caplog):
    moved = [(0.97 * x, y) for x, y in loaders["validation"]]
    with pytest.raises(ValueError, match="has learned nothing"):
        pack(moon.lenet(10), tmp_path / "own.moon", train=[], validation=moved, classes=DIGITS, **SCALE, guarantee=HALF)
    assert "validation: the pixels (input * std + mean) * 255 are not whole numbers" in caplog.text
