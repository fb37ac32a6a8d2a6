"""`moon score`: several runs, other folders for the scores, and runs that fail."""

import json
import os
import shutil

import pytest

from moon.records import read_record
from moon.run.identity import identity
from moon.run.images import BenchmarkImages

FAST = ("--detector", "msp", "ebo")


@pytest.fixture
def runs(trained_runs, tmp_path):
    """A folder of three runs: two seeds of cross-entropy, and MOON."""
    settings = [{"objective": "cross-entropy", "seed": seed} for seed in (0, 1)] + [{"options": {"quiet_epochs": 1}}]
    for name, one in zip(("plain-0", "plain-1", "moon-0"), settings, strict=True):
        shutil.copytree(trained_runs(epochs=3, **one), tmp_path / "runs" / name)
    return tmp_path / "runs"


def contents(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_several_runs_are_scored_with_the_same_images_and_shown_in_one_table(moon, runs, monkeypatch):
    opened = []
    original = BenchmarkImages.open
    monkeypatch.setattr(BenchmarkImages, "open", lambda *a: opened.append(a[1]) or original(*a))
    code, out, err = moon("score", "runs/plain-0", "runs/moon-0", "runs/plain-1", *FAST)
    assert code == 0, err
    assert opened == ["mnist"]
    assert out.count("Known inputs") == out.count("Unknown inputs") == 1
    rows = [line.split() for line in out.splitlines()]
    assert [row[1] for row in rows if row and row[0] == "msp"] == ["cross-entropy", "moon"]
    assert "±" in out  # over two seeds
    for name in ("plain-0", "plain-1", "moon-0"):
        assert f"scored: runs/{name}" in out
        assert (runs / name / "scores.png").stat().st_size > 1000
        assert list(json.loads((runs / name / "scores.json").read_text())["detectors"]) == ["msp", "ebo"]
    assert out.count("left out: cifar10, tin, places") == 1  # for all runs together


def test_temperatures_are_shown(moon, runs, trained_runs):
    code, out, _ = moon("score", "runs/plain-0", *FAST)
    assert code == 0
    assert "Logits are divided by T = 1, as in the loss: ebo\n" in out
    shutil.copytree(trained_runs(objective="logitnorm", epochs=3), runs / "normalised")
    code, out, err = moon("score", "runs/plain-0", "runs/normalised", *FAST, "ebo:unscaled")
    assert code == 0
    summary = json.loads((runs / "normalised" / "scores.json").read_text())
    temperature = summary["known_scaled"]["temperature"]
    ebo = summary["temperatures"]["ebo"]
    assert (ebo["value"], ebo["from"]) == (temperature, "fitted on validation images")
    note = " (not an optimum)" if "no_optimum" in ebo else ""  # ten validation images are few
    assert (f"T = {temperature:.3g}, is not an optimum" in err) == bool(note)
    fitted = f"T = {temperature:.3g}, fitted on validation images{note} (1 of 2 runs): ebo"
    loss = "T = 1, as in the loss (1 of 2 runs): ebo, ebo:unscaled"
    line = f"Logits are divided by {loss}; {fitted}; T = 1, not fitted (1 of 2 runs): ebo:unscaled"
    assert " ".join(out.split()).count(line) == 1


def test_only_the_detectors_asked_for_are_shown_and_those_scored_earlier_are_kept(moon, runs):
    assert moon("score", "runs/plain-0", "--detector", "ebo", "unknown", "gen")[0] == 2  # K outputs: unknown cannot
    assert moon("score", "runs/plain-0")[0] == 0  # all; unknown is left out
    code, out, err = moon("score", "runs/plain-0", "--detector", "msp", "gen")
    assert code == 0, err
    table = out.partition("Unknown inputs")[2].partition("Images scored")[0]
    assert [line.split()[0] for line in table.splitlines() if " cross-entropy " in line] == ["msp", "gen"]
    assert "Logits are divided by T = 1, as in the loss: gen\n" in out
    kept = list(json.loads((runs / "plain-0" / "scores.json").read_text())["detectors"])
    assert kept[:2] == ["msp", "gen"]
    first, rest = ", ".join(kept[2:10]), len(kept) - 10
    assert f"scores.json also has {first} and {rest} more, scored earlier" in out
    assert "is left out: " not in out
    code, out, err = moon("score", "runs/plain-0")
    assert code == 0, err
    assert "scored earlier" not in out
    assert "unknown is left out: " in out


@pytest.mark.parametrize("name", ["msp:scaled", "knn:unscaled"])
@pytest.mark.parametrize("command", [("score", "runs"), ("grid", "mnist", "--plan")])
def test_a_variant_that_a_detector_does_not_have_is_one_line(moon, runs, command, name):
    code, _, err = moon(*command, "--detector", "ebo", name)
    key, _, variant = name.partition(":")
    assert (code, err.count("\n")) == (2, 1)
    assert f"detector '{key}' has no variant '{variant}'; those that depend on the scale of the logits have: ebo" in err


def test_a_folder_of_runs_stands_for_its_runs(moon, runs):
    code, out, _ = moon("score", "runs", "runs/moon-0", *FAST)  # each run once
    assert code == 0
    assert out.count("scored: ") == 3


def test_a_run_that_fails_does_not_lose_the_others(moon, runs):
    (runs / "moon-0" / "result.json").unlink()
    (runs / "plain-0" / "model.safetensors").write_bytes(b"x")
    code, out, err = moon("score", "runs", *FAST)
    assert code == 2
    assert "failed: runs/moon-0: the run is not finished" in err
    assert "failed: runs/plain-0/model.safetensors: is not the model" in err
    assert err.strip().splitlines()[-1] == (
        "moon score: 2 of 3 runs were not scored, the first one: runs/moon-0: the run is not finished; "
        "start it again with the same command"
    )
    assert (runs / "plain-1" / "scores.json").exists()
    assert "cross-entropy" in out


def test_json_has_the_runs_that_failed_as_well(moon, runs):
    (runs / "moon-0" / "result.json").unlink()
    code, out, err = moon("score", "runs", *FAST, "--json")
    found = {entry["folder"]: entry for entry in json.loads(out)}
    assert code == 2
    assert "the run is not finished" in found["runs/moon-0"]["error"]
    assert found["runs/plain-1"]["detectors"]
    assert "failed: runs/moon-0" in err


def test_runs_of_different_benchmarks_have_a_table_each(moon, runs, data_root):
    (data_root / "benchmarks.toml").write_text("[part]\nknown = 'mnist'\nnear = ['notmnist']\nfar = ['dtd']\n")
    recipe = json.loads((runs / "plain-1" / "recipe.json").read_text())
    (runs / "plain-1" / "recipe.json").write_text(json.dumps(recipe | {"benchmark": "part"}))
    result = read_record(runs / "plain-1" / "result.json")
    (runs / "plain-1" / "result.json").write_text(json.dumps(result | identity(runs / "plain-1")))
    code, out, err = moon("score", "runs/plain-0", "runs/plain-1", *FAST)
    assert code == 0, err
    assert (out.count("Known inputs"), out.count("Unknown inputs")) == (1, 2)
    assert "part cross-entropy" in out


def test_copies_of_a_run_are_not_averaged(moon, runs):
    shutil.copytree(runs / "plain-0", runs / "copy")
    code, out, _ = moon("score", "runs/plain-0", "runs/copy", *FAST)
    assert code == 0
    assert "cross-entropy runs/copy" in out
    assert "±" not in out


def test_scores_can_go_to_another_folder(moon, runs, tmp_path):
    before = contents(runs)
    code, out, err = moon("score", "runs/plain-0", "--out", "scores", "--keep-evidence", *FAST)
    assert code == 0, err
    assert "figure: scores/scores.png" in out
    assert "evidence: scores/evidence, 5 files" in out
    files = {"scores.json", "scores.npz", "known.npz", "examples.npz", "scores.png"}
    assert files <= {path.name for path in (tmp_path / "scores").iterdir()}
    code, out, err = moon("score", "runs", "--out", "all/scores", "--mirrored", *FAST)
    assert code == 0, err
    for name in ("plain-0", "plain-1", "moon-0"):
        assert files == {path.name for path in (tmp_path / "all" / "scores" / name / "mirrored").iterdir()}
    assert contents(runs) == before  # not even a lock
    (tmp_path / "more").mkdir()
    shutil.copytree(runs / "plain-0", tmp_path / "more" / "plain-0")
    code, _, err = moon("score", "runs", "more/plain-0", "--out", "x", *FAST)
    assert (code, "2 runs are called 'plain-0'" in err) == (2, True)


def test_a_read_only_run_folder_is_reported_before_images_are_read(moon, runs, data_root, monkeypatch):
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: "plain-0" not in str(path) and access(path, mode))
    monkeypatch.setattr(BenchmarkImages, "open", None)
    code, _, err = moon("score", "runs/plain-0", *FAST)
    assert code == 2
    assert err.startswith("moon score: runs/plain-0: cannot be written (no permission to write to ")
    assert err.endswith("); give another folder for the scores (--out FOLDER)\n")


def test_a_benchmark_without_unknown_sets_gets_a_hint(moon, runs, data_root):
    for name in ("notmnist", "fashionmnist", "dtd"):
        shutil.rmtree(data_root / name)
    code, _, err = moon("score", "runs/plain-0", *FAST)
    assert code == 2
    assert "mnist: no unknown set was found" in err
    assert "--near and --far" in err
    assert f"{data_root}/benchmarks.toml" in err
    assert moon("score", "runs/plain-0", "--far", "nothing", *FAST)[0] == 3


def test_auto_says_what_was_chosen_and_why(moon, runs, trained_runs, tmp_path, monkeypatch):
    monkeypatch.setattr("moon.score.auto.FEW", 0)  # as with many training images
    shutil.copytree(trained_runs(objective="logitnorm", epochs=3), runs / "normalised")
    code, out, err = moon("score", "runs/plain-0", "runs/normalised", "--detector", "auto")
    assert code == 0, err
    lines = out.splitlines()
    hint = "(--tune-on SET compares all detectors on unknown images instead)"
    rule = "by the rule for networks trained with normalised logits or features"
    assert f"runs/normalised: auto: fisher, {rule} {hint}" in lines
    assert any(line.startswith("runs/plain-0: auto: knn, by the rule") for line in lines)
    detectors = {line.split()[0] for line in lines if line.split()[1:2] in (["cross-entropy"], ["logitnorm"])}
    assert detectors == {"knn", "fisher"}
    code, out, err = moon("score", "runs/plain-0", "--detector", "auto", "--tune-on", "notmnist", "--json")
    assert code == 0, err
    (found,) = json.loads(out)
    assert found["auto"]["detector"] in found["detectors"]
    code, out, err = moon("report", "runs/plain-0", "--out", tmp_path / "page.html")
    assert code == 0, err
    assert f"Chosen by auto: {found['auto']['detector']}, the best of" in (tmp_path / "page.html").read_text()
    code, _, err = moon("score", "runs/plain-0", "--detector", "auto:scaled")
    assert (code, err.count("\n")) == (2, 1)
    assert "auto chooses a detector by itself and has no variant 'scaled'" in err
