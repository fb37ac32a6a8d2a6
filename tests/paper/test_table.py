"""Our numbers next to the paper's, from fabricated run folders."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from moon.data import find_benchmark
from moon.paper.items import items
from moon.paper.recipes import recipe_for
from moon.paper.render import to_csv, to_latex, to_markdown, to_terminal
from moon.paper.spec import FULL, Scale
from moon.paper.table import PaperTable

SETS = {"near": ["cifar100", "tin"], "far": ["mnist", "svhn", "dtd", "places"]}


@pytest.fixture
def filled(tmp_path, fabricate):
    """A function that fabricates the runs of an item; MOON's AUROC is better by `gain` for every seed."""

    def make(key, gain=0.02, seeds=3, scale=FULL, skip=(), **facts):
        benchmark = find_benchmark(Path(), scale.benchmarks["cifar10"])
        made = set()
        for measurement in items()[key].measurements:
            for seed in range(seeds):
                recipe = recipe_for(measurement, scale, benchmark, seed)
                if recipe.name in made or measurement.training in skip:
                    continue
                made.add(recipe.name)
                value = 0.001 * seed + (gain + 0.001 * seed if measurement.training == "moon" else 0.0)
                fabricate(tmp_path, recipe, auroc=0.9 + value, accuracy=0.94 + value, **SETS | facts)
        return PaperTable.read(items()[key], scale, Path(), tmp_path)

    return make


def text(table, width=80):
    console = Console(width=max(width, 300), record=True, file=io.StringIO())
    console.print(to_terminal(table, width))
    return console.export_text()


def runs_of(table):
    return table.runs_done, table.runs_needed


def verdicts(table):
    return {claim.comparison.verdict for claim in table.claims}


def test_our_numbers_and_the_paper_s_with_the_difference(filled):
    table = filled("table1")
    columns, rows = table.grid()
    assert columns == ["cifar100", "tin", "near", "mnist", "svhn", "dtd", "places", "far"]
    assert [label for label, _ in rows] == [f"{s}% {word}" for s in (80, 90, 95, 99) for word in ("plain", "MOON")]
    number = rows[0][1][0]
    assert number.paper == (87.43, 0.2)
    assert number.text() == "90.10 ± 0.10"
    assert number.paper_text() == "paper 87.43, +2.67"
    by_name = dict(zip(columns, rows[0][1], strict=True))
    assert by_name["dtd"].paper[0] == 89.35  # the paper calls it Texture
    assert runs_of(table) == (24, 24)
    assert "missing" not in text(table)
    assert "cifar10: known 50, cifar100 50" in text(table)


def test_claims_are_tested_and_corrected(filled):
    table = filled("table1")
    assert verdicts(table) == {"better"}
    assert len(table.claims) == 4 * 8
    claim = table.claims[0]
    assert 0 < claim.comparison.p < 0.05
    assert claim.text().startswith(
        "MOON against plain, CIFAR-10 RigL 80% msp AUROC % cifar100: +2.10 [+1.85, +2.35], n = 3, p = 0.0"
    )
    assert claim.text().endswith("better")
    assert "▲" in text(table)


def test_claims_over_all_sparsities_average_over_them(filled):
    table = filled("table1")
    assert len(table.pooled_claims) == 8
    pooled = next(claim for claim in table.pooled_claims if claim.number.set == "near")
    single = [claim.comparison for claim in table.claims if claim.number.set == "near"]
    assert len(single) == 4
    for side in ("a", "b"):  # the seed is the unit: its mean over the four sparsities
        by_sparsity = [getattr(comparison, side) for comparison in single]
        assert getattr(pooled.comparison, side) == pytest.approx([sum(v) / 4 for v in zip(*by_sparsity, strict=True)])
    assert "RigL 80%, 90%, 95%, 99% msp AUROC % near: +2.10 [" in pooled.text()
    assert "n = 3" in pooled.text()
    assert table.claim_lines()[0] == pooled.text()


def test_a_loss_is_worse(filled):
    table = filled("table1", gain=-0.03)
    assert verdicts(table) == {"worse"}
    assert "▼" in text(table)


def test_lower_is_better_for_some_metrics(tmp_path, fabricate):
    scale = Scale(FULL.benchmarks, seeds=3)
    for measurement in items()["table8"].measurements:
        for seed in range(3):
            recipe = recipe_for(measurement, scale, find_benchmark(Path(), "cifar10"), seed)
            fpr95 = 0.3 + 0.002 * seed if measurement.training == "moon" else 0.4
            fabricate(tmp_path, recipe, fpr95=fpr95, **SETS)
    assert verdicts(PaperTable.read(items()["table8"], scale, Path(), tmp_path)) == {"better"}


def test_one_seed_makes_no_claim(filled):
    table = filled("table1", seeds=1, scale=Scale(FULL.benchmarks, seeds=1))
    assert verdicts(table) == {"too few seeds"}
    assert {len(claim.comparison.a) for claim in table.pooled_claims} == {1}  # four sparsities, one seed
    assert "No claim is made where there are fewer than 3 seeds." in text(table)
    assert "(1 seed: no claim)" in text(table)
    assert "±" not in to_markdown(table)
    assert "▲" not in text(table)


def test_missing_runs_are_missing_numbers(filled):
    table = filled("table1", skip=("moon",))
    assert runs_of(table) == (12, 24)
    assert not table.claims
    assert "12 of 24 runs are missing" in text(table)
    _, rows = table.grid()
    assert rows[1][1][0].text() == "-"
    assert rows[1][1][0].paper_text() == "paper 89.93"


def test_other_data_have_no_numbers_of_the_paper(filled):
    scale = Scale({"cifar10": "digits"}, epochs=4)
    table = filled("table1", scale=scale, near=["letters"], far=["textures", "photos"])
    assert runs_of(table) == (24, 24)
    assert all(number.paper is None for number in table.numbers)
    assert {number.measurement.data for number in table.numbers} == {"digits"}
    assert "digits replaces the paper's CIFAR-10" in to_markdown(table)


def test_known_inputs_and_two_kinds_of_columns(filled):
    columns, rows = filled("table7").grid()
    assert columns[:4] == ["80% ECE", "80% accuracy %", "90% ECE", "90% accuracy %"]
    labels = [label for label, _ in rows]
    assert "MOON w/o AT (w_f throughout)" in labels
    assert "MOON w/o AT (w_i throughout)" in labels
    assert rows[0][1][0].text() == "0.0200 ± 0.0000"
    mixed, _ = filled("table4").grid()
    assert mixed[:3] == ["ECE", "accuracy %", "FPR-95 % cifar100"]


def test_time_is_a_ratio(tmp_path, fabricate):
    scale = Scale(FULL.benchmarks, seeds=1)
    item = items()["table16"]
    for measurement in item.measurements:
        recipe = recipe_for(measurement, scale, find_benchmark(Path(), "cifar10"), 0)
        fabricate(tmp_path, recipe, seconds=104.0 if measurement.training == "moon" else 100.0, **SETS)
    _, rows = PaperTable.read(item, scale, Path(), tmp_path).grid()
    assert [n.text() for n in rows[0][1]] == ["1.000"] * 4
    assert rows[1][1][0].paper_text() == "paper 1.045, -0.005"


def test_markdown_csv_and_latex_have_every_number(filled):
    table = filled("table1")
    markdown = [line for line in to_markdown(table).splitlines() if line.startswith("|")]
    assert len(markdown) == 2 + 8
    assert len({line.count("|") for line in markdown}) == 1
    assert "paper 87.43, +2.67" in markdown[2]
    rows = list(csv.DictReader(io.StringIO(to_csv(table))))
    assert len(rows) == 8 * 8
    first = rows[0]
    assert (first["training"], first["set"], first["n"]) == ("plain", "cifar100", "3")
    assert float(first["mean"]) == pytest.approx(90.1, abs=0.01)
    assert float(first["low"]) <= float(first["mean"]) <= float(first["high"])
    assert float(first["difference"]) == pytest.approx(float(first["mean"]) - 87.43)
    moons = [row for row in rows if row["training"] == "moon"]
    assert {row["verdict"] for row in moons} == {"better"}
    assert {row["against"] for row in moons} == {"plain"}
    latex = to_latex(table)
    assert latex.count(r"\\") == 1 + 8 * 2
    assert len({line.count("&") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
    for mark in ("%", "_", "±", "▲"):
        assert mark not in latex.replace(rf"\{mark}", "")


def test_an_unfinished_run_counts_as_missing(filled, tmp_path):
    table = filled("table1")
    some = next(tmp_path.glob("cifar10-rigl80-moon-s0-*"))
    (some / "todo.json").write_text("{}")
    later = PaperTable.read(items()["table1"], FULL, Path(), tmp_path)
    assert (runs_of(table), runs_of(later)) == ((24, 24), (23, 24))


def test_runs_scored_on_other_images_are_excluded(filled, tmp_path):
    filled("table1")
    some = next(tmp_path.glob("cifar10-rigl80-moon-s2-*")) / "scores.json"
    summary = json.loads(some.read_text())
    some.write_text(json.dumps(summary | {"sha256": {"known": "others"}}))
    table = PaperTable.read(items()["table1"], FULL, Path(), tmp_path)
    assert runs_of(table) == (23, 24)
    assert "1 run is excluded because it was scored on other images or in another way" in text(table)
    _, rows = table.grid()
    assert len(rows[1][1][0].ours) == 2
    # A detector whose options were tuned for one run is not averaged with the others.
    some.write_text(json.dumps(summary | {"search": {"msp": {}}}))
    _, rows = PaperTable.read(items()["table1"], FULL, Path(), tmp_path).grid()
    assert len(rows[1][1][0].ours) == 2


def test_means_need_all_sets_and_the_same_sets_as_the_paper(filled, tmp_path):
    table = filled("table1", near=["tin"])  # CIFAR-100 was not scored
    by_set = {number.set: number for number in table.numbers[:8]}
    assert by_set["tin"].text() == "90.10 ± 0.10"
    assert by_set["cifar100"].text() == by_set["near"].text() == "-"
    assert "'-' marks numbers that were not measured." in text(table)
    scale = Scale({"cifar10": "part"}, seeds=1)
    for name in ("cifar10", "tin", "dtd"):
        for split in ("train", "test"):
            (tmp_path / name).mkdir(exist_ok=True)
            np.savez(tmp_path / name / f"{split}.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.arange(2))
    (tmp_path / "benchmarks.toml").write_text("[part]\nknown = 'cifar10'\nnear = ['tin']\nfar = ['dtd']\n")
    numbers = {n.set: n for n in PaperTable.read(items()["table1"], scale, tmp_path, tmp_path).numbers[:4]}
    assert numbers["tin"].paper == (88.92, 0.2)
    assert numbers["near"].paper is None  # the paper's mean is over two sets
    assert numbers["dtd"].paper == (89.35, 0.3)
