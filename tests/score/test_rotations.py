"""A run of RotPred: trained, averaged, scored and packed."""

import numpy as np
import pytest
import torch

from moon import BenchmarkImages, Fisher, RotPredScore, Scaled, WeightVote, load, read, score_run
from moon.data import BENCHMARKS
from moon.recipe import build, make_recipe
from moon.run.train import flops
from moon.timing import noise


@pytest.fixture(scope="module")
def folder(trained_runs):
    return trained_runs(objective="rotpred+moon-logitnorm", options={"quiet_epochs": 1, "copies": 1}, epochs=3)


def test_the_detector_scores_the_rotations_of_a_run(images, folder, tmp_path):
    result, scores = score_run(folder, images, ["msp", "rotpred", "rotpred:unscaled"], out=tmp_path / "scores")
    assert list(result["detectors"]) == ["msp", "rotpred", "rotpred:unscaled"]
    assert result["temperatures"]["rotpred"]["from"] == "fitted on validation images"
    model, test = load(folder), images.splits["test"]
    assert model.fc.out_features == 11
    prepared = (torch.as_tensor(test.images).permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    evidence = read(model, [prepared], rotate=True)
    np.testing.assert_allclose(scores["rotpred:unscaled"]["known"], RotPredScore().score(evidence), rtol=1e-4)
    detector = Scaled(RotPredScore()).fit(images.evidence(model, images.splits["val"]))
    np.testing.assert_allclose(scores["rotpred"]["known"], detector.score(evidence), rtol=1e-4)


def test_rotations_can_be_a_part_of_fisher(images, folder, tmp_path, monkeypatch):
    name = "fisher:msp+rotpred"
    result, alone = score_run(folder, images, [name, f"{name}:unscaled"], out=tmp_path / "alone")
    assert list(result["detectors"]) == [name, f"{name}:unscaled"]
    assert result["temperatures"][name]["from"] == "fitted on validation images"
    assert result["temperatures"][f"{name}:unscaled"]["value"] == 1
    model = load(folder)
    known = {split: images.evidence(model, images.splits[split], rotate=True) for split in ("train", "val", "test")}
    for key, scaled in ((name, True), (f"{name}:unscaled", False)):
        fisher = Fisher(parts=["msp", "rotpred"], scaled=scaled).fit(known["train"], known["val"])
        np.testing.assert_allclose(alone[key]["known"], fisher.score(known["test"]), rtol=1e-6)
    turned = []
    original = BenchmarkImages.evidence
    monkeypatch.setattr(
        BenchmarkImages,
        "evidence",
        lambda *a, **how: ("rotate" in how and turned.append(len(a[2].labels))) or original(*a, **how),
    )
    both = score_run(folder, images, ["rotpred", name, f"{name}:unscaled"], out=tmp_path / "both")[1]
    # The sets of rotpred, the validation images of both, and the sets again, but only for the other temperature.
    assert sorted(turned) == [10, 10, 30, 30, 30, 30, 30, 30, 90, 90]
    assert all(np.array_equal(both[key]["dtd"], alone[key]["dtd"]) for key in alone)


def test_statistics_are_estimated_from_what_a_step_computes(monkeypatch):
    # BatchNorm sees upright and rotated images in training, so it must see both after a vote.
    benchmark = BENCHMARKS["digits"]
    recipe = make_recipe(benchmark, "rotpred+moon", topology="static", epochs=3, batch_size=16, vote_share=0.5)
    run = build.training(recipe, benchmark, noise(benchmark, 40), "cpu")
    sizes, elect = [], WeightVote.elect
    monkeypatch.setattr(WeightVote, "elect", lambda self, loader: elect(self, _counted(loader, sizes)))
    run.run()
    assert sizes == [64, 64, 32]


def _counted(loader, sizes):
    for x, y in loader:
        sizes.append(len(x))
        yield x, y


def test_flops_of_training_include_the_copies():
    images = BenchmarkImages.open("data", "digits")
    recipe = make_recipe("digits", "rotpred", options={"copies": 1}, topology="static", epochs=3)
    training = build.training(recipe, images.benchmark, images.splits["train"], "cpu")
    cost = flops(training.model, recipe, images, training)
    assert cost["layers"]["fc.rotation.weight"] == 0  # the forward pass does not use it
    assert cost["training"] == pytest.approx(2 * 3 * len(images.splits["train"].labels) * 3 * cost["inference"])
