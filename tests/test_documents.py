"""The generator of the pages of results, `results/documents.py`: what is stale, unknown or missing is reported."""

import sys
from importlib import import_module
from pathlib import Path
from statistics import mean

import numpy as np
import pytest

from moon import make_recipe
from moon.metrics import auroc_interval, interval
from moon.recipe import Recipe
from moon.score.files import read_summary

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "results"))  # where `python results/documents.py` finds its modules
documents, kept_runs, sources, cells, paper_files, images = map(
    import_module, ("documents", "kept", "sources", "cells", "paper_files", "images")
)

ACCURACY = "demo/rigl95/plain accuracy"


@pytest.fixture(scope="module")
def kept():
    return kept_runs.Kept(ROOT / "results")


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with one page and the runs of the demo; nothing else is read."""
    (tmp_path / "docs" / "results").mkdir(parents=True)
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "demo").symlink_to(ROOT / "results" / "demo")
    (tmp_path / "README.md").write_text("# A page without numbers\n")
    monkeypatch.setattr(documents, "write_paper_files", lambda kept, check: [])
    return tmp_path


class Invented(kept_runs.Kept):
    """Runs whose values are given: by network, metric and seed."""

    def __init__(self, values):
        super().__init__(Path("nowhere"))
        self.given = values

    def runs(self, network):
        return {
            seed: None for metrics in [self.given.get(network, {})] for values in metrics.values() for seed in values
        }

    def values(self, network, metric):
        return self.given.get(network, {}).get(metric, {})


def page_of(repository: Path, text: str) -> Path:
    page = repository / "docs" / "results" / "page.md"
    page.write_text(text)
    return page


def true_accuracy() -> float:
    paths = sorted((ROOT / "results" / "demo").glob("*cross-entropy*"))
    return 100 * mean(read_summary(path)["known"]["accuracy"] for path in paths)


def test_a_changed_number_is_reported_and_rewritten(repository, capsys):
    page = page_of(repository, f"# Title\n\nAccuracy is 12.34<!-- {ACCURACY} --> percent.\n")
    assert documents.main(["--check"], repository) == 1
    right = f"{true_accuracy():.2f}"
    assert capsys.readouterr().err.splitlines() == [
        f"docs/results/page.md:3: says 12.34, should say {right} ({ACCURACY}); run make results"
    ]
    assert documents.main([], repository) == 0
    assert page.read_text() == f"# Title\n\nAccuracy is {right}<!-- {ACCURACY} --> percent.\n"
    assert documents.main(["--check"], repository) == 0


def test_a_changed_table_is_reported_and_rewritten(repository, capsys):
    page = page_of(repository, "above\n\n<!-- table demo -->\n<!-- end -->\n\nbelow\n")
    assert documents.main([], repository) == 0
    fresh = page.read_text()
    assert fresh.startswith("above\n\n<!-- table demo -->\n| ")
    assert fresh.endswith(" |\n<!-- end -->\n\nbelow\n")
    stale = fresh.replace("| plain RigL | 3 |", "| plain RigL | 4 |")
    assert stale != fresh
    page.write_text(stale)
    capsys.readouterr()
    assert documents.main(["--check"], repository) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("docs/results/page.md:6: table demo: says '| plain RigL | 4 |")
    assert "should say '| plain RigL | 3 |" in line
    assert line.endswith("run make results")
    assert documents.main([], repository) == 0
    assert page.read_text() == fresh


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("<!-- table dem -->\n<!-- end -->", "table dem: there is no such table (did you mean 'demo'?)"),
        (
            "1.0<!-- demo/rigl95/plan accuracy -->",
            "no run of 'demo/rigl95/plan' is kept (did you mean 'rigl95/plain'?)",
        ),
        ("1.0<!-- dmo/rigl95/plain accuracy -->", "there is no collection 'dmo' (did you mean 'demo'?)"),
        ("1.0<!-- demo/rigl95/plain acuracy -->", "there is no metric 'acuracy' (did you mean 'accuracy'?)"),
        ("1.0<!-- demo/rigl95/plain -->", "is not of the form NETWORK [- NETWORK] METRIC [STATISTIC]"),
        ("1.0<!-- demo/rigl95/plain fisher near -->", "'fisher near' of demo/rigl95/plain was not measured"),
        ("1.0<!-- demo/rigl95/plain accuracy p -->", "only a difference of two networks has a p-value"),
        (
            "1.0<!-- demo/rigl95/moon - demo/rigl95/plain accuracy p:sumary -->",
            "there is no family of comparisons 'sumary' (did you mean 'summary'?)",
        ),
        ("1.0<!-- demo/rigl95/moon - demo/rigl95/plain accuracy p:rivals -->", "is not in the family 'rivals'"),
        ("about<!-- demo/rigl95/plain accuracy -->", "is neither right after a number, nor a table with <!-- end -->"),
        ("<!-- table demo -->", "is neither right after a number, nor a table with <!-- end -->"),
        ("1.0<!-- nonsense -->", "is neither right after a number, nor a table with <!-- end -->"),
    ],
)
def test_unknown_names_are_reported(repository, capsys, text, reason):
    page = page_of(repository, f"first\n{text}\n")
    for arguments in (["--check"], []):
        assert documents.main(arguments, repository) == 1
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("docs/results/page.md:2: ")
        assert reason in lines[0]
    assert page.read_text() == f"first\n{text}\n"  # what cannot be written stays as it is


def test_missing_and_unlisted_folders_are_reported(repository, capsys):
    page_of(repository, "<!-- table mnist -->\n<!-- end -->\n")
    (repository / "results" / "new").mkdir()
    (repository / "results" / "new" / "run").symlink_to(next((ROOT / "results" / "demo").iterdir()))
    assert documents.main(["--check"], repository) == 1
    assert capsys.readouterr().err.splitlines() == [
        "results/new: has runs, but no table reads it; add it to COLLECTIONS in results/kept.py",
        "docs/results/page.md:1: table mnist: results/mnist is missing; its tables cannot be made without it",
    ]


def test_numbers_without_a_source_are_reported(repository, capsys):
    text = "# Version 1.5\n\n`1.5` and [1,234](x1.5.md) of 0.3.0, 12, w_f=0.5\n1.5<!-- fixed --> but 2.5 and -3.75.\n"
    page_of(repository, text)
    (repository / "docs" / "other.md").write_text("Other pages may have 2.5 of anything.\n")
    assert documents.main(["--check"], repository) == 1
    assert capsys.readouterr().err.splitlines() == [
        "docs/results/page.md:3: the number 0.5 has no source",
        "docs/results/page.md:4: the number 2.5 has no source",
        "docs/results/page.md:4: the number -3.75 has no source",
    ]


@pytest.mark.parametrize(
    ("value", "shown", "text"),
    [
        (91.678, "0.0", "91.7"),
        (91.678, "7", "92"),
        (1.26, "+0.0", "+1.3"),
        (-1.26, "+0.0", "-1.3"),
        (-1.26, "0.0", "-1.3"),
        (-0.01, "-0.5", "0.0"),
        (6.345e15, "0.00e16", "0.63e16"),
    ],
)
def test_numbers_keep_their_format(value, shown, text):
    assert documents.formatted(value, shown) == text


def test_differences_are_paired_by_seed():
    kept = Invented(
        {
            "x/a/one": {"accuracy": {0: 5.0}},
            "x/a/all": {"accuracy": {0: 1.0, 1: 2.0, 2: 6.0}},
            "x/a/other": {"ece": {1: 1}},
        }
    )
    assert sources.read_source(kept, "x/a/one - x/a/all accuracy") == 4  # not 5 minus the mean of three seeds
    assert sources.read_source(kept, "x/a/one - x/a/all accuracy n") == 1
    assert sources.read_source(kept, "x/a/all accuracy") == 3
    assert sources.read_source(kept, "x/a/all accuracy max") == 6
    low, high = (sources.read_source(kept, f"x/a/all accuracy {end}") for end in ("low", "high"))
    assert low == pytest.approx(3 - 4.302653 * 7**0.5 / 3**0.5)  # t with 2 degrees of freedom, deviation sqrt(7)
    assert high == pytest.approx(3 + 4.302653 * 7**0.5 / 3**0.5)


def test_ablations_are_compared_with_moon_of_the_same_seeds():
    a, b = "cifar10/rigl95/w_f=4", "cifar10/rigl95/moon"
    kept = Invented({a: {"accuracy": {0: 95.0}}, b: {"accuracy": {0: 94.0, 1: 90.0, 2: 92.0}}})
    table = cells.differences_table(kept, "ablations", [(a, b)], ["accuracy %", "ECE"])
    assert table.splitlines()[2] == "| w_f = 4 - MOON | 1 | +1.0 | - |"
    assert table.endswith("No comparison has three seeds, so none is tested.")
    kept = Invented({a: {"accuracy": {0: 95.0, 1: 91.1, 2: 92.9}}, b: {"accuracy": {0: 94.0, 1: 90.0, 2: 92.0}}})
    table = cells.differences_table(kept, "ablations", [(a, b)], ["accuracy %"])
    assert table.splitlines()[2] == "| w_f = 4 - MOON | 3 | **+1.0 [+0.8, +1.2]** |"
    assert "over the 1 comparison with three seeds" in table


def test_cells_show_the_seeds_that_exist():
    kept = Invented({"x/a/all": {"accuracy": {0: 1.0, 1: 3.0}, "ece": {1: 0.5}}})
    rows = [(["all"], "x/a/all"), (["none"], "x/a/none")]
    table = cells.networks_table(kept, ["name"], rows, ["accuracy %", "ECE", "ECE, scaled"])
    assert table.splitlines()[2:] == [
        "| all | 2 | 2.0 ± 1.4 | 0.500 (n = 1) | - |",
        "| none | 0 | - | - | - |",
    ]


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"preset": "control"}, "rigl95/control"),
        ({"preset": "best-1"}, "rigl95/moon-logitnorm@300"),
        ({"preset": "best-2"}, "rigl95/quick@300"),
        ({"objective": "moon", "topology": "dense"}, "dense/moon"),
        ({"objective": "moon", "options": {"final": 4.0}, "sparsity": 0.8}, "rigl80/w_f=4"),
        ({"objective": "moon", "options": {"quiet_epochs": 2}}, "rigl95/T_e=2"),
        ({"objective": "moon", "vote_share": 0.05}, "rigl95/votes=5"),
        ({"preset": "without-vt"}, "rigl95/without-vt"),
        ({"objective": "logitnorm", "rates": "moon", "vote_share": 0.2, "epochs": 300}, "rigl95/logitnorm+vote@300"),
        (
            {"objective": "moon-logitnorm", "options": {"temperature": 0.02}, "weight_decay": 0.001},
            "rigl95/moon-logitnorm,temperature=0.02,weight_decay=0.001",
        ),
    ],
)
def test_names_of_networks(settings, name):
    sparsity = {} if settings.get("topology") == "dense" else {"sparsity": 0.95}
    recipe = make_recipe("cifar10", **(sparsity | settings))
    assert kept_runs.network_name(recipe, kept_runs.COLLECTIONS["cifar10"]) == name


def test_options_that_are_usual_in_a_collection_are_not_part_of_the_name():
    recipes = [make_recipe("cifar10", "moon", options={"final": final}, sparsity=0.95) for final in (1.0, 2.0)]
    names = [kept_runs.network_name(recipe, kept_runs.COLLECTIONS["tin100"]) for recipe in recipes]
    assert names == ["rigl95/w_f=1", "rigl95/moon"]


def test_normalised_logits_use_the_fitted_temperature_unless_the_name_says_unscaled(kept):
    (run,) = kept.runs("tin100/rigl95/moon-logitnorm/s0").values()
    detectors, by_set = run.summary["detectors"], run.summary["p_unknown_unscaled"]
    assert run.summary["temperatures"]["ebo"]["value"] == kept_runs.value(run, "temperature") != 1
    assert kept_runs.value(run, "ebo near") == 100 * detectors["ebo"]["near"]["auroc"]
    assert kept_runs.value(run, "ebo:unscaled svhn") == 100 * detectors["ebo:unscaled"]["sets"]["svhn"]["auroc"]
    assert kept_runs.value(run, "p-unknown:unscaled svhn") == by_set["svhn"]["p_unknown_unknown"]
    assert kept_runs.value(run, "p-unknown:unscaled wrong") == by_set["svhn"]["p_unknown_wrong"]
    far = [by_set[name]["p_unknown_unknown"] for name in ("mnist", "svhn", "dtd", "places", "cifar10")]
    assert kept_runs.value(run, "p-unknown:unscaled far") == pytest.approx(mean(far))


def test_every_kept_run_has_a_name_and_all_of_a_collection_the_same_images(kept):
    for name in kept_runs.COLLECTIONS:
        folders = kept_runs.COLLECTIONS[name].folders
        runs = {path.parent for folder in folders for path in (ROOT / "results" / folder).glob("*/recipe.json")}
        plain = {network: seeds for network, seeds in kept.collection(name).items() if "+mirrored" not in network}
        assert {run.folder for seeds in plain.values() for run in seeds.values()} == runs
    assert isinstance(next(iter(kept.runs("mnist/dense/moon").values())).recipe, Recipe)


@pytest.mark.slow
def test_stale_tables_and_figures_of_the_paper_are_reported(tmp_path, monkeypatch):
    for data in ("mnist", "tin100"):
        (tmp_path / "results" / data).mkdir(parents=True)
        for path in (ROOT / "results" / data).iterdir():
            if path.name != "paper":
                (tmp_path / "results" / data / path.name).symlink_to(path)
    monkeypatch.setattr(paper_files, "ITEMS", {"mnist": ("mnist",), "cifar10": ("summary",)})
    kept = kept_runs.Kept(tmp_path / "results")
    missing = [f"results/cifar10: is missing; its {what} cannot be made without it" for what in ("tables", "figure")]
    assert paper_files.write_paper_files(kept, check=False) == missing
    assert paper_files.write_paper_files(kept, check=True) == missing
    table, figure = tmp_path / "results/mnist/paper/mnist.csv", tmp_path / "results/tin100/paper/auroc.svg"
    assert (ROOT / "results/mnist/paper/mnist.csv").read_text() == table.read_text()
    table.write_text(table.read_text().replace("accuracy", "accurracy", 1))
    digest = paper_files._digest(figure)
    figure.write_text(figure.read_text().replace(digest, "0" * 64))
    (tmp_path / "results/mnist/paper/old.md").write_text("")
    csv, *absent, svg, stray = paper_files.write_paper_files(kept, check=True)
    assert absent == missing
    assert csv.startswith("results/mnist/paper/mnist.csv:")
    assert "accurracy" in csv
    assert svg == (
        f"results/tin100/paper/auroc.svg:1: says the plotted data are {'0' * 64}, should say {digest}; run make results"
    )
    assert stray == "results/mnist/paper/old.md: nothing writes this file; delete it, or add it to ITEMS"


def test_an_interval_is_rewritten_with_its_number(repository):
    page = page_of(repository, "It gains 0.0 [0.0, 0.00]<!-- demo/rigl95/moon - plain accuracy --> points.\n")
    assert documents.main([], repository) == 0
    both = [
        {path.name.split("-s")[1][0]: read_summary(path)["known"]["accuracy"] for path in sorted(found)}
        for found in ((ROOT / "results" / "demo").glob(f"*-{name}-s*") for name in ("moon", "cross-entropy"))
    ]
    differences = [100 * (both[0][seed] - both[1][seed]) for seed in sorted(both[0])]
    low, high = interval(differences)
    text = f"{mean(differences):.1f} [{low:.1f}, {high:.2f}]"
    assert page.read_text() == f"It gains {text}<!-- demo/rigl95/moon - plain accuracy --> points.\n"


def test_goals_of_one_seed_have_no_interval():
    values = {"accuracy": [95.0, 97.0], "fisher near": [94.25], "ece-scaled": [0.009], "msp near": []}
    goals = {"accuracy": 95.3, "fisher near": 94.0, "ece-scaled": 0.008, "msp near": 90.0}
    assert cells.goals_table(goals, values.__getitem__).splitlines()[2:] == [
        "| accuracy | 95.3 or more | 96.00 | [83.29, 108.71] | yes | no | 95.00, 97.00 |",
        "| Fisher near | 94 or more | 94.25 | - | yes | - | 94.25 |",
        "| ECE, scaled | 0.008 or less | 0.0090 | - | no | - | 0.0090 |",
        "| MSP near | 90 or more | - | - | - | - | |",
    ]


def test_the_chosen_detector_is_the_best_one_on_validation_images(kept):
    assert kept.chosen("cifar10/rigl95/plain@300") == "knn"
    assert kept.chosen("cifar10/rigl95/control@300") == "gen:scaled"
    assert kept.chosen("cifar10/rigl95/plain") is None  # nothing was ranked
    assert kept.values("cifar10/rigl95/plain@300", "chosen near") == kept.values("cifar10/rigl95/plain@300", "knn near")
    assert kept.values("cifar10/rigl95/plain", "chosen near") == {}


@pytest.mark.parametrize("metric", ["fisher near", "msp far", "accuracy"])
def test_errors_over_images_are_paired(kept, metric):
    network, other = "cifar10-open/rigl95/quick@300", "cifar10-open/rigl95/quick"
    (value, error), (second, _) = (images.over_images(kept, name, metric) for name in (network, other))
    assert value == pytest.approx(mean(kept.values(network, metric).values()), abs=0.04)  # kept as 256 levels
    assert images.over_images(kept, network, metric, network) == (0, 0)
    difference, its_error = images.over_images(kept, network, metric, other)
    assert difference == pytest.approx(value - second)
    assert 0 < its_error < error  # the networks err on the same images


def test_the_error_over_images_is_delongs(kept):
    network = "cifar10-open/rigl95/quick/s0"
    value, error = images.over_images(kept, network, "fisher cifar100-part")
    (run,) = kept.runs(network).values()
    with np.load(ROOT / "results/scores" / f"{run.folder.name}.npz") as levels:
        low, high = auroc_interval(levels["fisher/known"], levels["fisher/cifar100-part"])
    area = value / 100
    assert value == pytest.approx(kept.values(network, "fisher cifar100-part")[0], abs=0.05)
    width = 2 * 1.959964 * error / 100 / (area * (1 - area))  # of the interval of logit(area)
    assert width == pytest.approx(np.log(high / (1 - high)) - np.log(low / (1 - low)))
