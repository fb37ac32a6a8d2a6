"""The paper's evaluation: its numbers, its tables and figures, and the runs that they need."""

from pathlib import Path

import pytest

from moon.data import find_benchmark
from moon.paper.items import choose, items
from moon.paper.published import published
from moon.paper.recipes import missing_data, needed_runs, recipe_for
from moon.paper.spec import FULL, MINI, OURS, Measurement, Scale


def recipe_of(measurement, scale=FULL, seed=0):
    return recipe_for(measurement, scale, find_benchmark(Path(), scale.benchmarks[measurement.data]), seed)


def measure(training, topology="rigl", sparsity=0.95, data="cifar10"):
    return Measurement(data, topology, sparsity, training)


def test_numbers_of_the_paper():
    numbers = {k: v for i in range(1, 18) for k, v in published(f"table{i}").items()}
    assert published("table1")[Measurement("cifar10", "rigl", 0.95, "moon", "msp", "auroc"), "near"] == (88.71, 0.1)
    assert published("table1")[Measurement("cifar10", "rigl", 0.99, "plain", "msp", "auroc"), "mnist"] == (88.34, 0.8)
    assert numbers[Measurement("cifar10", "rigl", 0.8, "without-vt", "", "accuracy"), ""] == (92.97, None)
    assert numbers[Measurement("cifar10", "rigl", 0.8, "moon", "", "time_ratio"), ""] == (1.045, None)
    assert numbers[Measurement("cifar100", "rigl", 0.99, "moon", "", "time_ratio"), ""] == (1.043, None)
    assert numbers[Measurement("mnist", "dense", 0.0, "plain", "msp", "auroc"), "near"] == (91.45, None)
    # The paper's "without AT" has two possible interpretations; its number is shown for both.
    both = [
        numbers[Measurement("cifar10", "rigl", 0.99, f"without-at-{word}", "", "ece"), ""]
        for word in ("final", "initial")
    ]
    assert both == [(0.02, None)] * 2
    # The paper's tables do not agree with each other; each has its own numbers.
    moon_80 = Measurement("cifar10", "rigl", 0.8, "moon", "", "accuracy"), ""
    assert (published("table6")[moon_80][0], published("table7")[moon_80][0]) == (94.97, 94.77)
    half = Measurement("cifar10", "rigl", 0.95, "w_f=0.5", "msp", "auroc"), "near"
    assert (published("table12")[half][0], published("table13")[half][0]) == (87.66, 86.97)
    assert sum(len(published(f"table{i}")) for i in range(1, 18)) == 816 + 8  # "without AT" counts twice


def test_every_table_and_figure_is_defined():
    keys = [f"table{i}" for i in range(1, 18)] + [f"figure{i}" for i in range(1, 13)] + list(OURS)
    assert list(items()) == keys
    assert all(item.measurements for item in items().values())
    figures = [*(f"figure{i}" for i in range(1, 13)), "summary"]
    assert [item.key for item in items().values() if item.draw] == figures
    # Every number of the paper is in a table.
    measurements = {measurement for item in items().values() for measurement in item.measurements}
    assert {measurement for measurement, _ in published("all")} <= measurements
    for item in items().values():
        for a, b in item.pairs:
            assert {a, b} <= {measurement.training for measurement in item.measurements}, (item.key, a, b)


def test_a_table_needs_its_networks_times_seeds():
    found = needed_runs(Path(), [items()["table1"]], FULL)
    assert len(found) == 4 * 2 * 3
    assert {(r.objective, r.sparsity) for r in found} == {
        (o, s) for o in ("cross-entropy", "moon") for s in (0.8, 0.9, 0.95, 0.99)
    }
    assert {(r.benchmark, r.epochs, r.batch_size, r.topology) for r in found} == {("cifar10", 100, 128, "rigl")}
    assert set(map(tuple, found.values())) == {("msp",)}
    both = needed_runs(Path(), [items()["table1"], items()["table3"]], FULL)
    assert list(both) == list(found)  # the same networks
    assert set(map(tuple, both.values())) == {("msp", "knn", "klm")}
    assert [r.seed for r in found] == sorted(r.seed for r in found)


def test_missing_data_is_left_out(data_root):
    scale = FULL.with_benchmarks(["cifar10=mnist"])
    assert missing_data(data_root, [items()["table6"]], scale) == {"cifar100": "cifar100"}
    found = needed_runs(data_root, [items()["table6"]], scale, without=["cifar100"])
    assert {(r.benchmark, r.objective) for r in found} == {("mnist", "dac"), ("mnist", "moon")}


def test_other_networks_can_have_fewer_seeds():
    scale = Scale(FULL.benchmarks, seeds=3, other_seeds=1)
    found = needed_runs(Path(), [items()["table1"], items()["table9"]], scale)
    assert sum(r.topology == "rigl" for r in found) == 8 * 3
    assert sum(r.topology == "set" for r in found) == 8


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ("plain", ("cross-entropy", {}, 0.1, 0.0)),
        ("control", ("cross-entropy", {}, 0.12, 0.2)),
        ("moon", ("moon", {}, 0.12, 0.2)),
        ("without-lm", ("moon", {"final": 0.0, "schedule": "final"}, 0.12, 0.2)),
        ("without-at-final", ("moon", {"schedule": "final"}, 0.12, 0.2)),
        ("without-at-initial", ("moon", {"schedule": "initial"}, 0.12, 0.2)),
        ("without-vt", ("moon", {}, 0.12, 0.0)),
        ("w_f=0.5", ("moon", {"final": 0.5}, 0.12, 0.2)),
        ("T_e=3", ("moon", {"quiet_epochs": 3}, 0.12, 0.2)),
        ("votes=10", ("moon", {}, 0.12, 0.1)),
        ("cigl", ("cigl", {}, 0.12, 0.2)),
        ("vos", ("vos", {}, 0.1, 0.0)),
        ("vos+vote", ("vos", {}, 0.12, 0.2)),
    ],
)
def test_recipes_of_trainings(training, expected):
    recipe = recipe_of(measure(training))
    assert (recipe.objective, dict(recipe.objective_options), recipe.lr_start, recipe.vote_share) == expected


def test_settings_that_depend_on_the_data():
    assert dict(recipe_of(measure("moon", data="cifar100")).objective_options) == {"final": 2.0}
    assert dict(recipe_of(measure("moon", "dense", 0.0, "mnist")).objective_options) == {"final": 0.01}
    imagenet = recipe_of(measure("moon", data="imagenet"))
    assert (imagenet.batch_size, imagenet.net) == (32, "resnet50")
    assert recipe_of(measure("moon", data="mnist")).net == "resnet18"  # the paper's, not the benchmark's
    assert recipe_of(measure("plain", "dense", 0.0)).topology == "dense"


def test_settings_in_epochs_are_scaled_with_the_length_of_a_run():
    short = Scale(FULL.benchmarks, epochs=40)
    assert dict(recipe_of(measure("moon"), short).objective_options) == {"quiet_epochs": 2}
    assert dict(recipe_of(measure("T_e=1"), short).objective_options) == {"quiet_epochs": 1}
    assert dict(recipe_of(measure("dac"), short).objective_options) == {"quiet_epochs": 4}
    assert recipe_of(measure("votes=5"), short).vote_share == 0.05


def test_the_reduced_scale_has_few_runs_of_embedded_images():
    assert MINI.with_nearest_sparsity(measure("moon", sparsity=0.8)).sparsity in (0.7, 0.9)
    assert MINI.with_nearest_sparsity(measure("moon", "dense", 0.0)).sparsity == 0.0
    found = needed_runs(Path(), items().values(), MINI)
    assert {r.benchmark for r in found} == {"digits"}
    assert len(found) < 60


def test_other_benchmarks_can_replace_the_paper_s_data():
    scale = FULL.with_benchmarks(["cifar10=cifar10-v1.5", "mnist=mnist-v1"])
    assert (scale.benchmarks["cifar10"], scale.benchmarks["cifar100"]) == ("cifar10-v1.5", "cifar100")
    assert recipe_of(measure("moon"), scale).benchmark == "cifar10-v1.5"
    for wrong in ("cifar10", "cifar=x", "=x", "cifar10="):
        with pytest.raises(ValueError, match="DATA=NAME"):
            FULL.with_benchmarks([wrong])


def test_choosing_items():
    assert [item.key for item in choose(["table2", "figure1"])] == ["table2", "figure1"]
    assert len(choose(["all"])) == len(items())
    with pytest.raises(ValueError, match=r"no table or figure 'tabel1' \(did you mean 'table1'"):
        choose(["tabel1"])


def test_short_runs_on_few_images_change_their_masks(data_root):
    declared = "[small]\nknown = 'mnist'\nnet = 'lenet-norm'\nnear = ['notmnist']\nfar = []\n"
    (data_root / "benchmarks.toml").write_text(declared)
    scale = MINI.with_benchmarks(["cifar10=small"])
    measurement = Measurement("cifar10", "rigl", 0.9, "plain")
    recipe = recipe_for(measurement, scale, find_benchmark(data_root, "small"), 0, data_root)
    assert recipe.delta_t_steps < 5  # 2 epochs of 4 steps; the paper's interval is 100
    assert needed_runs(data_root, [items()["table16"]], scale).keys() >= {recipe}
