"""Our numbers beside the paper's, from run folders made by hand."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from moon.data import benchmark
from moon.paper.items import items
from moon.paper.spec import FULL, Scale, recipe
from moon.paper.table import Sheet

SETS = {"near": ["cifar100", "tin"], "far": ["mnist", "svhn", "dtd", "places"]}


@pytest.fixture
def filled(tmp_path, fabricate):
    """A function that makes the runs of an item; MOON's AUROC is better by `gain` in every seed."""

    def make(key, gain=0.02, seeds=3, scale=FULL, skip=(), **facts):
        row = benchmark(Path(), scale.benchmarks["cifar10"])
        made = set()
        for line in items()[key].lines:
            for seed in range(seeds):
                one = recipe(line, scale, row, seed)
                if one.name in made or line.training in skip:
                    continue
                made.add(one.name)
                better = gain + 0.001 * seed if line.training == "moon" else 0.0
                wiggle = 0.001 * seed
                fabricate(tmp_path, one, auroc=0.9 + better + wiggle, accuracy=0.94 + better + wiggle, **SETS | facts)
        return Sheet.read(items()[key], scale, Path(), tmp_path)

    return make


def text(sheet):
    console = Console(width=300, record=True, file=io.StringIO())
    console.print(sheet.show())
    return console.export_text()


def test_ours_beside_the_paper_s_with_the_difference(filled):
    sheet = filled("table1")
    columns, rows = sheet.grid()
    assert columns == ["cifar100", "tin", "near", "mnist", "svhn", "dtd", "places", "far"]
    assert [label for label, _ in rows] == [f"{s}% {word}" for s in (80, 90, 95, 99) for word in ("plain", "MOON")]
    number = rows[0][1][0]
    assert number.paper == (87.43, 0.2)
    assert number.text() == "90.10 ± 0.10"
    assert number.paper_text() == "paper 87.43, +2.67"
    by_name = dict(zip(columns, rows[0][1], strict=True))
    assert by_name["dtd"].paper[0] == 89.35  # the paper's Texture
    assert sheet.runs == (24, 24)
    assert "missing" not in text(sheet)
    assert "cifar10: known 50, cifar100 50" in text(sheet)


def test_a_terminal_breaks_no_words(filled):
    sheet = filled("summary")
    for width in (60, 80, 300):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(sheet.show(width))
        table = console.export_text().partition("control is")[0]
        words = {word for column in sheet.grid()[0] for word in column.split()}
        words |= {word for label, _ in sheet.grid()[1] for word in label.split()}
        assert words <= set(table.split()), width
        assert all(len(line) <= width for line in table.splitlines())
        assert table.count("────\n") + table.count("──── ") >= (2 if width == 60 else 1)
        assert table.split().count("90.10") == 3 * 4 * 6  # all but MOON's, at each sparsity


def test_claims_are_tested_and_corrected(filled):
    sheet = filled("table1")
    assert {claim.word for claim in sheet.claims} == {"better"}
    assert len(sheet.claims) == 4 * 8
    claim = sheet.claims[0]
    assert 0 < claim.p < 0.05
    assert claim.text().startswith(
        "MOON against plain, CIFAR-10 RigL 80% msp AUROC % cifar100: +2.10 [+2.00, +2.20], n = 3, p = 0.0"
    )
    assert claim.text().endswith("better")
    assert "▲" in text(sheet)


def test_claims_over_all_sparsities_take_the_pairs_together(filled):
    sheet = filled("table1")
    assert len(sheet.pooled) == 8
    claim = next(claim for claim in sheet.pooled if claim.number.set == "near")
    single = [c for c in sheet.claims if c.number.set == "near"]
    assert len(single) == 4
    assert claim.pairs()[0] == [value for c in single for value in c.pairs()[0]]
    assert claim.pairs()[1] == [value for c in single for value in c.pairs()[1]]
    assert claim.p < min(c.p for c in single)
    assert "RigL 80%, 90%, 95%, 99% msp AUROC % near: +2.10 [" in claim.text()
    assert "n = 12" in claim.text()
    assert sheet.claim_lines()[0] == claim.text()


def test_no_gain_is_no_evidence(filled):
    assert {claim.word for claim in filled("table1", gain=0.0).claims} == {"no evidence"}


def test_a_loss_is_said(filled):
    sheet = filled("table1", gain=-0.03)
    assert {claim.word for claim in sheet.claims} == {"worse"}
    assert "▼" in text(sheet)


def test_lower_is_better_for_some(tmp_path, fabricate):
    scale = Scale(FULL.benchmarks, seeds=3)
    for line in items()["table8"].lines:
        for seed in range(3):
            one = recipe(line, scale, benchmark(Path(), "cifar10"), seed)
            fabricate(tmp_path, one, fpr95=0.3 + 0.002 * seed if line.training == "moon" else 0.4, **SETS)
    sheet = Sheet.read(items()["table8"], scale, Path(), tmp_path)
    assert {claim.word for claim in sheet.claims} == {"better"}


def test_one_seed_makes_no_claim(filled):
    sheet = filled("table1", seeds=1, scale=Scale(FULL.benchmarks, seeds=1))
    assert {claim.word for claim in sheet.claims} == {"one seed"}
    assert {len(claim.pairs()[0]) for claim in sheet.pooled} == {4}  # four sparsities
    assert "One seed: no claim is made." in text(sheet)
    assert "±" not in sheet.markdown()
    assert "▲" not in text(sheet)


def test_missing_runs_are_missing_numbers(filled):
    sheet = filled("table1", skip=("moon",))
    assert sheet.runs == (12, 24)
    assert not sheet.claims
    shown = text(sheet)
    assert "12 of 24 runs are missing" in shown
    _, rows = sheet.grid()
    assert rows[1][1][0].text() == "-"
    assert rows[1][1][0].paper_text() == "paper 89.93"


def test_numbers_of_other_data_are_no_neighbours(filled):
    scale = Scale({"cifar10": "digits"}, epochs=4)
    sheet = filled("table1", scale=scale, near=["letters"], far=["textures", "photos"])
    assert sheet.runs == (24, 24)
    assert all(number.paper is None for number in sheet.numbers)
    assert {number.line.data for number in sheet.numbers} == {"digits"}
    assert "digits stands for the paper's CIFAR-10" in sheet.markdown()


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
    for line in item.lines:
        one = recipe(line, scale, benchmark(Path(), "cifar10"), 0)
        fabricate(tmp_path, one, seconds=104.0 if line.training == "moon" else 100.0, **SETS)
    _, rows = Sheet.read(item, scale, Path(), tmp_path).grid()
    assert [n.text() for n in rows[0][1]] == ["1.000"] * 4
    assert rows[1][1][0].paper_text() == "paper 1.045, -0.005"


def test_markdown_csv_and_latex_have_every_number(filled):
    sheet = filled("table1")
    markdown = sheet.markdown().splitlines()
    table = [line for line in markdown if line.startswith("|")]
    assert len(table) == 2 + 8
    assert len({line.count("|") for line in table}) == 1
    assert "paper 87.43, +2.67" in table[2]
    rows = list(csv.DictReader(io.StringIO(sheet.csv())))
    assert len(rows) == 8 * 8
    first = rows[0]
    assert (first["training"], first["set"], first["n"]) == ("plain", "cifar100", "3")
    assert float(first["mean"]) == pytest.approx(90.1, abs=0.01)
    assert float(first["low"]) <= float(first["mean"]) <= float(first["high"])
    assert float(first["difference"]) == pytest.approx(float(first["mean"]) - 87.43)
    moons = [row for row in rows if row["training"] == "moon"]
    assert {row["verdict"] for row in moons} == {"better"}
    assert {row["against"] for row in moons} == {"plain"}
    latex = sheet.latex()
    assert latex.count(r"\\") == 1 + 8 * 2
    assert len({line.count("&") for line in latex.splitlines() if line.endswith(r"\\")}) == 1
    for mark in ("%", "_", "±", "▲"):
        assert mark not in latex.replace(rf"\{mark}", "")


def test_an_unscored_or_running_run_counts_as_missing(filled, tmp_path):
    sheet = filled("table1")
    some = next(tmp_path.glob("cifar10-rigl80-moon-s0-*"))
    (some / "todo.json").write_text("{}")
    again = Sheet.read(items()["table1"], FULL, Path(), tmp_path)
    assert (sheet.runs, again.runs) == ((24, 24), (23, 24))


def test_runs_scored_on_other_images_are_left_out(filled, tmp_path):
    filled("table1")
    some = next(tmp_path.glob("cifar10-rigl80-moon-s2-*")) / "scores.json"
    summary = json.loads(some.read_text())
    some.write_text(json.dumps(summary | {"sha256": {"known": "others"}}))
    sheet = Sheet.read(items()["table1"], FULL, Path(), tmp_path)
    assert sheet.runs == (23, 24)
    assert "1 runs were scored on other images, or were read in another way, and are left out" in text(sheet)
    _, rows = sheet.grid()
    assert len(rows[1][1][0].ours) == 2
    # Nor is a detector whose options were chosen for one run averaged with the others.
    some.write_text(json.dumps(summary | {"search": {"msp": {}}}))
    assert len(Sheet.read(items()["table1"], FULL, Path(), tmp_path).grid()[1][1][1][0].ours) == 2


def test_means_are_over_all_sets_and_beside_the_same_ones_of_the_paper(filled, tmp_path):
    sheet = filled("table1", near=["tin"])  # CIFAR-100 was not found
    by_set = {number.set: number for number in sheet.numbers[:8]}
    assert by_set["tin"].text() == "90.10 ± 0.10"
    assert by_set["cifar100"].text() == by_set["near"].text() == "-"
    assert "'-' is a number that was not measured." in text(sheet)
    (tmp_path / "cifar10").mkdir()
    scale = Scale({"cifar10": "part"}, seeds=1)
    for name in ("cifar10", "tin", "dtd"):
        for split in ("train", "test"):
            (tmp_path / name).mkdir(exist_ok=True)
            np.savez(tmp_path / name / f"{split}.npz", images=np.zeros((2, 4, 4, 3), np.uint8), labels=np.arange(2))
    (tmp_path / "benchmarks.toml").write_text("[part]\nknown = 'cifar10'\nnear = ['tin']\nfar = ['dtd']\n")
    numbers = {n.set: n for n in Sheet.read(items()["table1"], scale, tmp_path, tmp_path).numbers[:4]}
    assert numbers["tin"].paper == (88.92, 0.2)
    assert numbers["near"].paper is None  # the paper's is over two sets
    assert numbers["dtd"].paper == (89.35, 0.3)


def test_lengths_other_than_the_paper_s_are_said(filled):
    sheet = filled("table14", scale=Scale(FULL.benchmarks, epochs=20))
    shown = text(sheet)
    assert "20 epochs, the paper's 100" in shown
    assert "MOON and T_e=1 and T_e=2 and T_e=3 are the same runs at this length" in shown


def test_every_comparison_is_in_the_csv(filled):
    rows = list(csv.DictReader(io.StringIO(filled("table5").csv())))
    moons = [row for row in rows if row["training"] == "moon"]
    assert {row["against"] for row in moons} == {"logitnorm; vos"}
    assert {row["verdict"] for row in moons} == {"better; better"}
