"""`moon grid`: unknown sets by name, the hint if there are none, and the table as LaTeX."""

import csv
import json
import shutil

import pytest

GRID = ("--net", "lenet-norm", "--epochs", "1", "--batch-size", "64", "--objective", "mixup", "--detector", "msp")


@pytest.fixture
def mine(data_root):
    """A set without a benchmark."""
    (data_root / "mnist").rename(data_root / "mine")


def scores(tmp_path):
    (path,) = tmp_path.glob("runs/grid/*/scores.json")
    return json.loads(path.read_text())


def test_unknown_sets_are_named_on_the_command_line(moon, tmp_path, in_this_process, mine):
    code, out, err = moon("grid", "mine", *GRID, "--near", "notmnist", "--far", "dtd", "fashionmnist")
    assert code == 0, err
    assert "near notmnist 30" in " ".join(out.split())
    assert (scores(tmp_path)["near"], scores(tmp_path)["far"]) == (["notmnist"], ["dtd", "fashionmnist"])
    # The state of the runs depends on the sets.
    assert "1 done" in moon("grid", "mine", *GRID, "--near", "notmnist", "--plan")[1]
    assert "1 waiting" in moon("grid", "mine", *GRID, "--near", "dtd", "--plan")[1]
    code, out, err = moon("grid", "mine", *GRID, "--near", "dtd")
    assert code == 0, err
    assert (scores(tmp_path)["near"], scores(tmp_path)["far"]) == (["dtd"], [])
    code, _, err = moon("grid", "mine", *GRID, "--near", "nothing")
    assert (code, "nothing/test.npz: no such file" in err) == (3, True)


def test_unknown_sets_are_named_in_a_file(moon, tmp_path, in_this_process, mine):
    text = "benchmark = 'mine'\nnet = 'lenet-norm'\nepochs = 1\nbatch_size = 64\nobjective = 'mixup'\n"
    (tmp_path / "mine.toml").write_text(f"{text}near = ['notmnist']\nfar = ['dtd']\n")
    code, _, err = moon("grid", "mine.toml", "--detector", "msp")
    assert code == 0, err
    assert (scores(tmp_path)["near"], scores(tmp_path)["far"]) == (["notmnist"], ["dtd"])
    assert moon("grid", "mine.toml", "--detector", "msp", "--far", "fashionmnist")[0] == 0  # replaces the file's
    assert (scores(tmp_path)["near"], scores(tmp_path)["far"]) == (["notmnist"], ["fashionmnist"])


def test_a_set_without_unknown_sets_gets_a_hint(moon, data_root, tmp_path, in_this_process, mine):
    code, out, _ = moon("grid", "mine", *GRID)
    assert code == 0
    assert "nothing is scored: mine: no unknown set was found" in out
    assert "--near and --far" in out
    assert f"{data_root}/benchmarks.toml" in out
    (folder,) = tmp_path.glob("runs/grid/mine-*")
    assert not (folder / "scores.json").exists()
    # What was scored before stays, and the runs are done.
    assert moon("grid", "mine", *GRID, "--near", "dtd")[0] == 0
    code, out, _ = moon("grid", "mine", *GRID)
    assert code == 0
    assert "nothing is scored" in out
    assert (folder / "scores.json").exists()
    assert not (folder / "todo.json").exists()


def test_the_table_is_also_written_as_latex(moon, tmp_path, in_this_process):
    code, out, err = moon("grid", "mnist", *GRID, "--seed", "0", "1", "--sparsity", "0.9", "0.95")
    assert code == 0, err
    assert "the table above as LaTeX, with FPR-95: runs/grid/results.tex" in out
    lines = (tmp_path / "runs" / "grid" / "results.tex").read_text(encoding="utf-8").splitlines()
    assert lines[2:4] == [r"\label{tab:results}", r"\begin{tabular}{llrrrrrrr}"]
    assert lines[5] == r"method & detector & n & accuracy \% & ECE & near & far & near FPR-95 & far FPR-95 \\"
    printed = [line for line in out.splitlines() if line.startswith(" mixup")]
    assert len(printed) == 2
    for line in printed:  # the same rows
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        row = " & ".join(cells).replace("%", r"\%").replace("±", r"$\pm$") + " & "
        (line,) = [line for line in lines if line.startswith(row)]
        assert line.count("&") == 8


@pytest.mark.slow
def test_a_second_grid_in_a_folder_keeps_the_rows_of_the_first(moon, tmp_path, in_this_process):
    def rows():
        return list(csv.DictReader((tmp_path / "runs" / "grid" / "results.csv").read_text().splitlines()))

    code, out, err = moon("grid", "mnist", *GRID, "--seed", "0", "1")
    assert code == 0, err
    assert "of other grids" not in out
    first = rows()
    assert {row["seed"] for row in first} == {"0", "1"}
    code, out, err = moon("grid", "mnist", *GRID, "--sparsity", "0.5")
    assert code == 0, err
    assert "runs/grid/results.csv also has 2 runs of other grids in runs/grid, which the table does not show" in out
    (shown,) = [line.split() for line in out.splitlines() if " msp " in line]
    assert shown[:4] == ["mixup", "50%", "msp", "1"]  # the table is of this grid, with the labels of the file
    both = rows()
    assert len(both) == len(first) + 5
    assert [row["method"] for row in both] == ["mixup 50%"] * 5 + ["mixup 95%"] * 10
    named = {(row["run"], row["set"], row["auroc"]) for row in both}
    assert {(row["run"], row["set"], row["auroc"]) for row in first} < named


def test_what_the_file_of_all_runs_lacks_is_named(moon, tmp_path, in_this_process):
    assert moon("grid", "mnist", *GRID, "--seed", "0", "1", "2")[0] == 0
    not_finished, damaged, done = sorted(tmp_path.glob("runs/grid/mnist-*"))
    (not_finished / "result.json").unlink()
    (damaged / "log.jsonl").write_text("")
    shutil.copytree(done, tmp_path / "runs" / "grid" / "copy")
    code, out, err = moon("grid", "mnist", *GRID, "--sparsity", "0.5")
    assert code == 0, err
    left_out = [line.removeprefix("left out of runs/grid/results.csv: ") for line in out.splitlines() if "left" in line]
    assert left_out == [
        f"{not_finished.name}: not finished",
        f"runs/grid/{damaged.name}/log.jsonl: is not the complete log of this run; restore it",
        f"{done.name}: another run in the folder has the same recipe",
    ]


def test_the_default_detectors_are_those_of_the_paper(moon, tmp_path, in_this_process):
    code, _, err = moon("grid", "mnist", *GRID[:-2])
    assert code == 0, err
    assert list(scores(tmp_path)["detectors"]) == ["msp", "odin", "ebo", "knn", "klm"]


def test_auto_chooses_a_detector_for_each_run_once(moon, tmp_path, in_this_process, monkeypatch):
    monkeypatch.setattr("moon.score.auto.FEW", 0)  # as with many training images
    settings = (
        "--net",
        "lenet-norm",
        "--epochs",
        "1",
        "--batch-size",
        "64",
        "--objective",
        "cross-entropy",
        "logitnorm",
    )
    code, out, err = moon("grid", "mnist", *settings, "--detector", "auto")
    assert code == 0, err
    lines = out.splitlines()
    assert any(line.startswith("auto: cross-entropy: knn, by the rule for networks with at most") for line in lines)
    assert "auto: logitnorm: fisher, by the rule for networks trained with normalised logits or features" in lines
    paths = list(tmp_path.glob("runs/grid/*/scores.json"))
    found = {tuple(json.loads(path.read_text())["detectors"]) for path in paths}
    assert found == {("knn",), ("fisher",)}
    assert "2 done" in moon("grid", "mnist", *settings, "--detector", "auto", "--plan")[1]
    assert "2 waiting" in moon("grid", "mnist", *settings, "--detector", "auto", "msp", "--plan")[1]
    code, _, err = moon("grid", "mnist", *settings, "--detector", "auto:x")
    assert (code, "auto chooses a detector by itself" in err) == (2, True)
