"""The sections of the page about runs, as data."""

from dataclasses import replace

import pytest

from moon.data import BENCHMARKS
from moon.recipe import make_recipe
from moon.report.sections import (
    choose_detector,
    lead,
    methods_section,
    scores_section,
    training_section,
)
from moon.results.collect import collect


def make(objective):
    return make_recipe(BENCHMARKS["mnist"], objective, net="lenet-norm", sparsity=0.9, epochs=10)


def test_captions_and_columns_only_name_what_is_shown(tmp_path, fabricate):
    folder = fabricate(tmp_path, make("cross-entropy"))
    ((run,), _) = collect([folder])
    log = [{"epoch": epoch, "val_accuracy": 0.5} for epoch in range(3)]
    scores = {"near": {"auroc": 0.9, "fpr95": 0.5}, "sets": {}}
    run = replace(run, log=log, summary=run.summary | {"detectors": {"msp": scores}})
    caption = training_section({"plain": [run]}).caption
    assert "validation accuracy" in caption
    assert "unknown" not in caption
    table = methods_section({"plain": [run]}, "msp", "")["table"]
    assert "msp near %" in table.headings
    assert "msp far %" not in table.headings
    assert all(len(row) == len(table.headings) for row in table.rows)


def test_of_detectors_that_are_equal_on_far_sets_the_best_on_near_sets_is_named(tmp_path, fabricate):
    ((run,), _) = collect([fabricate(tmp_path, make("moon"))])
    found = {
        name: {"near": {"auroc": near}, "far": {"auroc": 1.0}} for name, near in (("a", 0.8), ("b", 0.9), ("c", 0.9))
    }
    best = lead({"moon": [replace(run, summary=run.summary | {"detectors": found})]})["best"]
    assert (best["group"], best["detector"]) == ("far", "b")


def test_runs_that_were_scored_on_different_images_are_not_ranked(tmp_path, fabricate):
    (plain, moon), _ = collect([fabricate(tmp_path, make(objective)) for objective in ("cross-entropy", "moon")])
    assert lead({"plain": [plain], "moon": [moon]})["best"] is not None
    moon = replace(moon, summary=moon.summary | {"sha256": {"known": "0" * 64}})
    found = lead({"plain": [plain], "moon": [moon]})
    assert (found["best"], found["is_comparable"]) == (None, False)
    table = methods_section({"plain": [plain], "moon": [moon]}, "msp", "")["table"]
    assert not any(cell.is_best for row in table.rows for cell in row[1:])


def test_sets_are_not_ranked_against_each_other(tmp_path, fabricate):
    runs, _ = collect([fabricate(tmp_path, make("moon"))])
    table = scores_section({"moon": runs}, "msp")["table"]
    assert len(table.rows) > 1
    assert not any(cell.is_best for row in table.rows for cell in row)


def test_the_detector_shown_is_the_one_asked_for_or_the_one_that_is_packed(tmp_path, fabricate):
    def chosen(*scored, asked=None, auto=None):
        more = {} if auto is None else {"auto": {"detector": auto}}
        runs = [replace(run, summary=run.summary | {"detectors": dict.fromkeys(names)} | more) for names in scored]
        return choose_detector({"moon": runs}, asked)

    ((run,), _) = collect([fabricate(tmp_path, make("moon"))])
    all_of_them = ("msp", "ebo", "knn", "fisher")
    assert chosen(all_of_them) == ("fisher", "what moon pack uses by default for most networks")
    assert chosen(all_of_them, auto="ebo") == ("ebo", "chosen by auto")
    assert chosen(all_of_them, asked="msp", auto="ebo") == ("msp", "as asked for")
    lacking = "as not all runs were scored with fisher"
    assert chosen(("msp", "knn")) == ("knn", lacking)
    assert chosen(("msp", "ebo"), all_of_them) == ("msp", lacking)
    assert chosen(("fisher",), ("msp",)) == (
        "fisher", "what moon pack uses by default for most networks; 1 of 2 runs were not scored with it",
    )  # fmt: skip
    with pytest.raises(ValueError, match="none of the runs was scored with the detector 'odni'; choose from: msp, knn"):
        chosen(("msp", "knn"), asked="odni")
