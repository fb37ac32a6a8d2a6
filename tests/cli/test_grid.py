"""`moon grid`: unknown sets by name, the hint if there are none, and the table as LaTeX."""

import json

import pytest

from moon.cli import runner
from moon.grid import State, worker

GRID = ("--net", "lenet-norm", "--epochs", "1", "--batch-size", "64", "--objective", "mixup", "--detector", "msp")


@pytest.fixture
def in_this_process(data_root, monkeypatch):
    """Runs are executed one after the other in this process."""

    def run(grid, _):
        for job in grid.jobs:
            if job.state() is State.WAITING:
                worker.work(job.folder, data_root)

    monkeypatch.setattr(runner, "run_grid", run)


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
    assert "the table above as LaTeX: runs/grid/results.tex" in out
    lines = (tmp_path / "runs" / "grid" / "results.tex").read_text(encoding="utf-8").splitlines()
    assert lines[2] == r"\begin{tabular}{llrrrrr}"
    assert lines[4] == r"method & detector & n & accuracy \% & ECE & near & far \\"
    printed = [line for line in out.splitlines() if line.startswith(" mixup")]
    assert len(printed) == 2
    for line in printed:  # the same rows
        cells = [cell.strip() for cell in line.split("  ") if cell.strip()]
        assert " & ".join(cells).replace("%", r"\%").replace("±", r"$\pm$") + r" \\" in lines


def test_numbers_are_not_cut_in_a_narrow_terminal(moon, tmp_path, in_this_process, monkeypatch):
    monkeypatch.setenv("COLUMNS", "30")
    assert moon("grid", "mnist", *GRID)[0] == 0
    code, out, _ = moon("grid", "mnist", *GRID)
    assert code == 0
    found = scores(tmp_path)
    for number in (f"{100 * found['known']['accuracy']:.1f}", f"{found['known']['ece']:.3f}"):
        assert number in out
    assert f"{100 * found['detectors']['msp']['far']['auroc']:.1f}" in out


def test_the_default_detectors_are_those_of_the_paper(moon, tmp_path, in_this_process):
    code, _, err = moon("grid", "mnist", *GRID[:-2])
    assert code == 0, err
    assert list(scores(tmp_path)["detectors"]) == ["msp", "odin", "ebo", "knn", "klm"]
