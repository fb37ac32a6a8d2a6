"""`moon paper`: messages about tables without runs."""

from dataclasses import replace

import pytest

from moon import CrossEntropy, Preset, RigL, register, unregister
from moon.paper.items import items, with_method
from moon.paper.recipes import needed_runs
from moon.paper.spec import FULL


@pytest.fixture
def kept(fabricate, tmp_path, data_root):
    """Finished runs in bfloat16 of the table `mnist`, and tables that were written before."""
    scale = replace(FULL, settings={"precision": "bfloat16"}, seeds=1)
    recipes = needed_runs(data_root, [items()["mnist"]], scale)
    for recipe in recipes:
        fabricate(tmp_path / "kept", recipe, near=["notmnist", "fashionmnist"], far=["dtd", "cifar10", "tin", "places"])
    (tmp_path / "kept" / "paper").mkdir()
    for suffix in ("md", "csv", "tex"):
        (tmp_path / "kept" / "paper" / f"mnist.{suffix}").write_text("kept")
    return len(recipes)


def test_without_runs_of_this_precision_the_others_are_named_and_nothing_is_written(moon, kept, tmp_path):
    code, out, err = moon("paper", "show", "mnist", "table10", "--out", "kept")
    assert code == 2
    assert "float32 (--precision)" in err
    assert f"runs there: {kept} of mnist, 100 epochs, bfloat16" in err
    assert out == ""
    assert [path.read_text() for path in (tmp_path / "kept" / "paper").iterdir()] == ["kept"] * 3


def test_tables_without_runs_are_not_written(moon, kept, tmp_path):
    code, out, err = moon("paper", "show", "mnist", "table1", "--out", "kept", "--precision", "bfloat16")
    assert code == 0, err
    assert "MNIST, dense and RigL 95%" in out
    assert "not written, because kept has none of their runs (number needed): table1 (24)" in out
    names = {path.name for path in (tmp_path / "kept" / "paper").iterdir()}
    assert names == {"mnist.md", "mnist.csv", "mnist.tex"}
    assert (tmp_path / "kept" / "paper" / "mnist.md").read_text(encoding="utf-8") != "kept"


def test_without_any_run_the_message_says_what_was_looked_for_and_what_is_there(moon, kept, tmp_path):
    code, _, err = moon("paper", "show", "table1", "--out", "kept")
    assert code == 2
    assert "kept: has no run of table1; looked for cifar10 (--benchmark), 100 epochs (--epochs)" in err
    assert f"runs there: {kept} of mnist, 100 epochs, bfloat16" in err
    code, _, err = moon("paper", "show", "table1", "--out", "nowhere")
    assert (code, "runs there: none finished and scored" in err) == (2, True)
    assert not (tmp_path / "nowhere").exists()
    code, out, _ = moon("paper", "show", "flops", "--out", "nowhere")  # needs no runs
    assert code == 0
    assert "written: nowhere/paper" in out


def test_methods_that_the_paper_does_not_have_are_rows_of_its_tables(moon, fabricate, tmp_path, data_root):
    register("objective", "mine", type("Mine", (CrossEntropy,), {}))
    register("preset", "mine-2", Preset("moon", {"final": 2.0}))
    register("topology", "renamed", type("Renamed", (RigL,), {}))
    try:
        item = items()["mnist"]
        for name in ("mine", "mine-2", "renamed"):
            (item,) = with_method([item], name)
        for recipe in needed_runs(data_root, [item], replace(FULL, seeds=1)):
            fabricate(tmp_path / "own", recipe, near=["notmnist", "fashionmnist"], far=["dtd"])
        show = "paper", "show", "mnist", "--out", "own", "--seeds", "1"
        code, out, err = moon(*show)
        assert code == 0, err
        assert "own also has runs with mine, renamed; --also NAME shows them in the tables" in out
        assert "RigL 95% mine" not in out
        code, out, err = moon(*show, "--also", "Mine", "mine-2", "renamed")
        assert code == 0, err
        for row in ("RigL 95% mine", "dense mine", "RigL 95% mine-2", "renamed 95% MOON", "mine against MOON"):
            assert row in out, row
        assert "also has runs" not in out
        assert "mine against plain" not in moon(*show, "--also", "renamed")[1]
    finally:
        unregister("objective", "mine")
        unregister("preset", "mine-2")
        unregister("topology", "renamed")
