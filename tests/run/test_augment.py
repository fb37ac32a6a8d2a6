"""Runs with an augmentation: another result, the same one after an interruption."""

import pytest
import torch

from moon.recipe import build, make_recipe
from moon.recipe.expand import expand
from moon.recipe.labels import labels
from moon.run.images import BenchmarkImages
from moon.run.train import train_run


class Stopped(Exception):
    pass


def test_a_run_that_was_interrupted_ends_like_one_that_was_not(data_root, tmp_path):
    images = BenchmarkImages.open(data_root, "mnist")
    settings = {"net": "lenet-norm", "epochs": 3, "batch_size": 64, "delta_t_steps": 3}
    recipe = make_recipe(images.benchmark, "cross-entropy", augment="trivial+cutout", **settings)

    def stop(record):
        if record["epoch"] == 1:
            raise Stopped

    whole = train_run(recipe, tmp_path / "whole", images)
    with pytest.raises(Stopped):
        train_run(recipe, tmp_path / "resumed", images, on_epoch=stop, checkpoint_seconds=0)
    resumed = train_run(recipe, tmp_path / "resumed", images)
    assert resumed["exact"]
    assert resumed["model_sha256"] == whole["model_sha256"]
    plain = train_run(make_recipe(images.benchmark, "cross-entropy", **settings), tmp_path / "plain", images)
    assert plain["model_sha256"] != whole["model_sha256"]


@pytest.mark.parametrize("augment", ["none", "trivial"])
def test_outliers_are_augmented_like_known_images(augment, data_root):
    images = BenchmarkImages.open(data_root, "mnist", outliers="notmnist")
    settings = {"net": "lenet-norm", "epochs": 1, "batch_size": 64, "topology": "static"}
    recipe = make_recipe(images.benchmark, "outlier-exposure", outliers="notmnist", augment=augment, **settings)
    training = build.training(recipe, images.benchmark, images.splits["train"], "cpu", images.outliers)
    supply = training.objective.outliers.__self__
    assert training.batches.augmentation.trivial == supply.augmentation.trivial == (augment == "trivial")
    assert torch.isfinite(training.step(*next(iter(training.batches.epoch(0))), 0, 0.1))


def test_the_default_is_not_part_of_a_name():
    plain = make_recipe("digits", objective="moon", sparsity=0.9, epochs=20)
    assert plain.name == "digits-rigl90-moon-s0-551d3732"
    assert make_recipe("digits", objective="moon", sparsity=0.9, epochs=20, augment="none", width=1).name == plain.name
    assert make_recipe("digits", objective="moon", sparsity=0.9, epochs=20, augment="cutout").name != plain.name


def test_an_augmentation_is_an_axis_of_a_grid_and_part_of_labels(data_root):
    axes = {"benchmark": "mnist", "net": "lenet-norm", "augment": ["none", "cutout", "trivial+cutout"]}
    assert list(labels(expand(data_root, axes)).values()) == ["moon", "moon cutout", "moon trivial+cutout"]
