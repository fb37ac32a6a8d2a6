"""What was measured on the kept runs."""

from dataclasses import replace
from pathlib import Path
from statistics import mean

import numpy as np
import pytest
from images import over_images
from kept import value
from networks import COLLECTIONS, network_name

from moon.metrics import auroc_interval
from moon.recipe import Recipe, make_recipe

ROOT = Path(__file__).parents[2]


def test_normalised_logits_use_the_fitted_temperature_unless_the_name_says_unscaled(kept):
    (run,) = kept.runs("tin100/rigl95/moon-logitnorm/s0").values()
    detectors, by_set = run.summary["detectors"], run.summary["p_unknown_unscaled"]
    assert run.summary["temperatures"]["ebo"]["value"] == value(run, "temperature") != 1
    assert value(run, "ebo near") == 100 * detectors["ebo"]["near"]["auroc"]
    assert value(run, "ebo:unscaled svhn") == 100 * detectors["ebo:unscaled"]["sets"]["svhn"]["auroc"]
    assert value(run, "p-unknown:unscaled svhn") == by_set["svhn"]["p_unknown_unknown"]
    assert value(run, "p-unknown:unscaled wrong") == by_set["svhn"]["p_unknown_wrong"]
    far = [by_set[name]["p_unknown_unknown"] for name in ("mnist", "svhn", "dtd", "places", "cifar10")]
    assert value(run, "p-unknown:unscaled far") == pytest.approx(mean(far))


def test_every_kept_run_has_a_name_and_all_of_a_collection_the_same_images(kept):
    for name in COLLECTIONS:
        folders = COLLECTIONS[name].folders
        paths = [path for folder in folders for path in (ROOT / "results" / folder).glob("*/recipe.json")]
        runs = [run for seeds in kept.collection(name).values() for run in seeds.values()]
        assert {run.folder for run in runs if run.folder.name != "mirrored"} == {path.parent for path in paths}
    assert isinstance(next(iter(kept.runs("mnist/dense/moon").values())).recipe, Recipe)


def test_the_chosen_detector_is_the_best_one_on_validation_images(kept):
    assert kept.chosen("cifar10/rigl95/plain@300") == "knn"
    assert kept.chosen("cifar10/rigl95/control@300") == "gen:scaled"
    assert kept.chosen("cifar10/rigl95/plain") is None  # nothing was ranked
    assert kept.values("cifar10/rigl95/plain@300", "chosen near") == kept.values("cifar10/rigl95/plain@300", "knn near")
    assert kept.values("cifar10/rigl95/plain", "chosen near") == {}


@pytest.mark.parametrize("metric", ["fisher near", "fisher far", "accuracy"])
def test_errors_over_images_are_paired(kept, metric):
    network, other = "cifar10-open/rigl95/quick@300", "cifar10-open/rigl95/quick"
    (value, error), (second, _) = (over_images(kept, name, metric) for name in (network, other))
    assert value == pytest.approx(mean(kept.values(network, metric).values()), abs=0.04)  # kept as 256 levels
    assert over_images(kept, network, metric, network) == (0, 0)
    difference, its_error = over_images(kept, network, metric, other)
    assert difference == pytest.approx(value - second)
    assert 0 < its_error < error  # the networks err on the same images


def test_the_error_over_images_is_delongs(kept):
    network = "cifar10-open/rigl95/quick/s0"
    value, error = over_images(kept, network, "fisher cifar100-part")
    (run,) = kept.runs(network).values()
    levels = kept.levels(run)
    low, high = auroc_interval(levels["fisher/known"], levels["fisher/cifar100-part"])
    area = value / 100
    assert value == pytest.approx(kept.values(network, "fisher cifar100-part")[0], abs=0.05)
    width = 2 * 1.959964 * error / 100 / (area * (1 - area))  # of the interval of logit(area)
    assert width == pytest.approx(np.log(high / (1 - high)) - np.log(low / (1 - low)))


@pytest.mark.parametrize(
    ("preset", "collection", "near", "far", "accuracy", "ece"),
    [("best-1", "cifar10", 91.5, 97, 94, 0.015), ("best-2", "cifar10-open", 94, 98, 95.3, 0.008)],
)
def test_the_best_presets_reach_the_published_numbers(kept, preset, collection, near, far, accuracy, ece):
    recipes = [make_recipe("cifar10", preset=preset, seed=seed, precision="bfloat16") for seed in (0, 1, 2)]
    network = f"{collection}/{network_name(recipes[0], COLLECTIONS[collection])}"
    runs = kept.runs(network)
    assert [replace(recipe, benchmark="cifar10-part") for recipe in recipes] == [run.recipe for run in runs.values()]
    assert mean(kept.values(network, "fisher near").values()) >= near
    assert mean(kept.values(network, "fisher far").values()) >= far
    assert mean(kept.values(network, "accuracy").values()) >= accuracy
    assert mean(kept.values(network, "ece-scaled").values()) <= ece
    assert [run.summary["images"]["known"] for run in runs.values()] == [9000] * 3
