"""The command line: what the commands print, and how they fail."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from moon import __version__, cli
from moon.cli import data, screen
from moon.cli.main import VERBS
from moon.training import locked

TRAIN = ("train", "mnist", "--epochs", "4", "--set", "quiet_epochs=1", "--batch-size", "64", "--net", "lenet-norm")


def fails(result, code, *parts):
    """Check the exit code, and that stderr is a single line that contains these parts."""
    found, _, err = result
    assert found == code, err
    assert len(err.strip().splitlines()) == 1, err
    assert all(part in err for part in parts), err


@pytest.mark.slow
def test_train_then_score(moon, tmp_path):
    code, out, err = moon(*TRAIN, "--out", "run")
    assert code == 0
    assert "learned little" not in err
    assert "run: accuracy" in out
    assert "next: moon score run" in out
    code, out, _ = moon("score", "run", "--detector", "msp", "odin", "ebo", "knn", "klm")
    assert code == 0
    for word in (
        "msp",
        "odin",
        "ebo",
        "knn",
        "klm",
        "notmnist",
        "near",
        "far",
        "left out: cifar10, tin, places",
    ):
        assert word in out
    assert (tmp_path / "run" / "scores.png").stat().st_size > 1000
    scored = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert list(scored["detectors"]) == ["msp", "odin", "ebo", "knn", "klm"]


@pytest.mark.slow
def test_the_run_folder_is_named_after_the_recipe(moon, tmp_path):
    assert moon(*TRAIN)[0] == 0
    assert moon(*TRAIN, "--seed", "1")[0] == 0
    names = sorted(path.name for path in (tmp_path / "runs").iterdir())
    assert [name.rsplit("-", 1)[0] for name in names] == ["mnist-rigl95-moon-s0", "mnist-rigl95-moon-s1"]


def test_data_lists_benchmarks_and_sets(moon, data_root, tmp_path):
    (data_root / "mine").mkdir()
    np.savez(data_root / "mine" / "test.npz", images=np.zeros((1, 2, 2, 1), np.uint8), labels=np.zeros(1, int))
    code, out, _ = moon("data")
    assert code == 0
    assert "✗places" in out
    assert "✓notmnist," in out
    assert f"other sets under {data_root}: mine" in " ".join(out.split())
    assert moon("data", "list")[1] == out
    for arguments in (("data", "--data", "elsewhere", "list"), ("data", "list", "--data", "elsewhere")):
        assert "elsewhere does not exist" in moon(*arguments)[1]
    (data_root / "benchmarks.toml").write_text("[part]\nknown = 'mnist'\nfar = ['far']\n[mnist]\nknown = 'mnist'")
    out = " ".join(moon("data")[1].split())
    assert "[part]: 'far' is not a valid data set name" in out
    assert "[mnist] is the name of a built-in benchmark" in out


def test_a_folder_that_cannot_be_written_is_named_before_images_are_read(moon, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    monkeypatch.setattr("moon.run.images.BenchmarkImages.open", None)
    fails(moon(*TRAIN, "--out", "new"), 2, "new: cannot be written (no permission to write to ", "(--out)")


@pytest.mark.slow
def test_a_folder_that_is_not_a_run_is_not_changed(moon, tmp_path):
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-mum.txt").write_text("dear")
    fails(moon(*TRAIN, "--out", "letters"), 2, "letters: contains to-mum.txt but no run", "--out")
    assert [path.name for path in (tmp_path / "letters").iterdir()] == ["to-mum.txt"]
    fails(moon("grid", "digits", "--out", "letters/to-mum.txt"), 3, "letters/to-mum.txt/", ": not a directory")


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("train", "mnst"), ["unknown benchmark 'mnst'", "did you mean 'mnist'"]),
        ((*TRAIN, "--preset", "contrl"), ["unknown preset 'contrl' (did you mean 'control'"]),
        ((*TRAIN, "--preset", "plain", "--objective", "moon"), ["give a preset or an objective"]),
        ((*TRAIN, "--sparsity", "95"), ["sparsity must be in [0, 1)", "for 95% give 0.95"]),
        ((*TRAIN, "--sparsity", "much"), ["--sparsity", "invalid float value"]),
        ((*TRAIN, "--epochs", "0"), ["--epochs", "at least 1"]),
        ((*TRAIN, "--lr", "-1"), ["at least 0", "not start=-1"]),
        ((*TRAIN, "--set", "final"), ["--set", "must be NAME=VALUE"]),
        ((*TRAIN, "--set", "finale=1"), ["no option 'finale'", "did you mean 'final'"]),
        ((*TRAIN, "--drop", "2"), ["fraction must be in [0, 1]"]),
        ((*TRAIN, "--t-end", "0.9", "--vote", "0.5", "--out", "run"), ["first vote", "masks change"]),
        ((*TRAIN, "--device", "cuda:99"), ["device 'cuda:99' cannot be used"]),
        ((*TRAIN, "--device", "gpu"), ["there is no device 'gpu'; choose cpu, cuda"]),
        (("train", "mnist", "--epochs", "5", "--set", "quiet_epochs=5"), ["quiet_epochs=5 of epochs=5"]),
        (("score", "nowhere"), ["nowhere is not a folder"]),
        (("data", "import"), ["moon data import: the following arguments are required: SOURCE, --name"]),
        (("demo", "--seeds", "0"), ["--seeds"]),
    ],
)
def test_invalid_arguments_exit_with_2_and_create_no_run(moon, tmp_path, arguments, parts):
    before = set(tmp_path.iterdir())
    fails(moon(*arguments), 2, *parts)
    created = set(tmp_path.iterdir()) - before
    assert not [path for path in created if (path / "recipe.json").exists()]


def test_invalid_data_exit_with_3(moon, data_root):
    fails(moon("train", "cifar10"), 3, "cifar10/train.npz", "no such file", "moon data download cifar10")
    path = data_root / "mnist" / "train.npz"
    path.write_bytes(path.read_bytes()[:1000])
    fails(moon(*TRAIN), 3, "mnist/train.npz", "cannot be read")
    fails(moon("data", "import", "none.txt", "--name", "x"), 3, "none.txt")
    fails(moon("data", "import", str(data_root / "mnist"), "--name", "x"), 3, "no class folders")


def test_a_damaged_run_exits_with_4(moon, tmp_path):
    assert moon(*TRAIN, "--out", "run")[0] == 0
    (tmp_path / "run" / "model.safetensors").write_bytes(b"x")
    fails(moon("score", "run"), 4, "model.safetensors")
    (tmp_path / "run" / "result.json").unlink()
    for manifest in (tmp_path / "run" / "checkpoints").glob("*/manifest.json"):
        manifest.write_text("{}")
    code, _, err = moon(*TRAIN, "--out", "run")
    assert code == 4
    assert "all 1 checkpoint(s) are damaged" in err


def test_a_diverged_run_exits_with_5(moon):
    code, out, err = moon(*TRAIN, "--lr", "1e30", "--out", "run")
    warning, error = err.splitlines(keepends=True)
    assert "10 validation images" in warning
    fails((code, out, error), 5, "not finite from epoch 1, step ", "(--lr)")


def test_a_locked_run_exits_with_6(moon, tmp_path):
    with locked(tmp_path / "run"):
        fails(moon(*TRAIN, "--out", "run"), 6, "another process")


def test_an_unexpected_error_is_printed_in_one_line(moon, monkeypatch):
    def broken(_):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(data, "_list", broken)
    fails(moon("data"), 1, "RuntimeError: first line (--debug shows the traceback)")
    with pytest.raises(RuntimeError):
        cli.main(["data", "--debug"])


def test_the_message_after_ctrl_c_says_how_to_resume(moon, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(screen, "train_on_screen", stop)
    fails(moon(*TRAIN), 130, "the same command resumes")


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_has_examples(moon, verb):
    code, out, _ = moon(*([verb] if verb else []), "--help")
    assert code == 0
    assert ("example" if verb else "exit codes") in out


@pytest.mark.slow
def test_module_and_command_are_the_same(tmp_path):
    command = os.path.join(os.path.dirname(sys.executable), "moon")
    outputs = [
        subprocess.run([*start, "--version"], capture_output=True, text=True, cwd=tmp_path, check=True).stdout
        for start in ([command], [sys.executable, "-m", "moon"])
    ]
    assert outputs[0] == outputs[1] == f"moon {__version__}\n"


@pytest.mark.slow
def test_demo_end_to_end(moon, tmp_path):
    code, out, _ = moon("demo", "--epochs", "1", "--out", "demo")
    assert code == 0
    for word in (
        "plain RigL",
        "letters",
        "textures",
        "photos",
        "RigL + outliers",
        "near",
        "far",
        "accuracy",
        "ECE",
    ):
        assert word in out
    assert "packed: " in out
    assert (tmp_path / "demo" / "known-against-unknown.png").stat().st_size > 1000
    assert (tmp_path / "demo" / "answers.png").stat().st_size > 1000
    assert (tmp_path / "demo" / "digits.moon").exists()
    assert (tmp_path / "demo" / "report.html").exists()


def test_methods_lists_and_describes_methods(moon):
    code, out, _ = moon("methods")
    assert code == 0
    for word in (
        "objective",
        "eow-softmax",
        "Du et al. 2022",
        "vos.md",
        "sup-tickets",
        "tickets",
        "openmax",
        "resnet50",
    ):
        assert word in out
    code, out, _ = moon("methods", "detector")
    assert code == 0
    assert "openmax" in out
    assert "rigl" not in out
    code, out, _ = moon("methods", "hod")
    assert code == 0
    for word in ("HOD", "Roy et al. 2022", "weight=0.1", "--objective hod --outliers photos", "docs/methods/hod.md"):
        assert word in out
    fails(moon("methods", "rgil"), 2, "did you mean 'rigl'")


def test_bench_prints_and_writes_times(moon, tmp_path):
    where = ("--benchmark", "digits", "--out", "bench.json")
    small = ("--steps", "1", "--rounds", "1", "--batch-size", "4", *where)
    code, out, _ = moon("bench", "train", "--objective", "moon", "mixup", "--topology", "rigl", "set", *small)
    assert code == 0
    assert "ratio: relative to the first line" in out
    written = json.loads((tmp_path / "bench.json").read_text())
    assert [(r["objective"], r["topology"]) for r in written["train"]] == [
        ("cross-entropy", "rigl"), ("moon", "rigl"), ("mixup", "rigl"),
        ("cross-entropy", "set"), ("moon", "set"), ("mixup", "set"),
    ]  # fmt: skip
    assert [r["plain"]["by_base"] == 1 for r in written["train"]] == [True, False, False] * 2
    assert {"date", "hardware", "software", "net", "precision"} <= written.keys()
    code, out, _ = moon("bench", "score", "--queries", "60", "--bank", "250", *where)
    assert code == 0
    assert "of the slowest one alone" in out
    scored = json.loads((tmp_path / "bench.json").read_text())["score"]
    assert scored["ratio"] == pytest.approx(scored["together"] / scored["alone"][scored["slowest"]])
    fails(moon("bench", "train", "--objective", "mooon"), 2, "did you mean 'moon'")
    fails(moon("bench", "train", "--out", "."), 2, "--out . is a folder; give a file in it")
    fails(moon("bench", "train", "--out", "bench.json/mine.json"), 2, "bench.json is a file, not a folder")
    fails(moon("bench", "train", "--benchmark", "cifar"), 2, "unknown benchmark 'cifar' (did you mean")


@pytest.mark.slow
def test_outliers_and_tuning_from_the_command_line(moon, tmp_path):
    plain = [word for word in TRAIN if word not in ("--set", "quiet_epochs=1")]
    fails(moon(*plain, "--objective", "hod"), 2, "name a set of them (--outliers)")
    fails(moon(*plain, "--objective", "hod", "--outliers", "nothing"), 3, "nothing")
    assert moon(*plain, "--objective", "hod", "--outliers", "notmnist", "--out", "run")[0] == 0
    code, out, _ = moon("score", "run", "--detector", "ebo", "unknown", "--tune-on", "fashionmnist")
    assert code == 0
    assert "notmnist is left out: the network was trained with it as outliers" in out
    assert "tuned on and not scored: fashionmnist" in out
    assert "ebo: temperature=" in out
    scored = json.loads((tmp_path / "run" / "scores.json").read_text())
    assert list(scored["images"]) == ["known", "dtd"]
    fails(moon("score", "run", "--near", "notmnist"), 2, "'notmnist' is used for training or tuning")
    # A run cannot resume with other outliers: they are part of its training data.
    fails(moon(*plain, "--objective", "hod", "--outliers", "fashionmnist", "--out", "run"), 2, "another recipe")


GRID = ("grid", "mnist", "--net", "lenet-norm", "--epochs", "2", "--batch-size", "64", "--threads", "1", "--jobs", "2")


@pytest.mark.slow
def test_grid_plans_runs_and_prints_a_summary(moon, tmp_path):
    axes = ("--objective", "cross-entropy", "mixup", "--seed", "0", "1", "--detector", "msp", "ebo")
    code, out, _ = moon(*GRID, *axes, "--plan")
    assert code == 0
    assert "4 runs in runs/grid: 0 done, 0 running, 4 waiting, 0 failed" in out
    code, out, _ = moon(*GRID, *axes)
    assert code == 0
    assert len(re.findall(r"^done   mnist-rigl95-\S+: accuracy \d+\.\d%$", out, re.MULTILINE)) == 4
    assert "all 4 runs are done" in out
    assert "mixup" in out
    table = (tmp_path / "runs" / "grid" / "results.csv").read_text().splitlines()
    assert len(table) == 1 + 4 * 2 * (3 + 2)  # runs, detectors, sets and means
    assert "4 done" in moon(*GRID, *axes, "--plan")[1]


@pytest.mark.slow
def test_grid_reports_missing_data_before_it_starts_and_prints_failures_literally(
    moon, in_this_process, data_root, tmp_path
):
    (data_root / "mnist" / "train.npz").rename(tmp_path / "train.npz")
    fails(moon(*GRID, "--objective", "mixup"), 3, "mnist/train.npz: no such file")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "train.npz").rename(data_root / "mnist" / "train.npz")
    assert moon(*GRID, "--objective", "mixup", "--plan")[0] == 0
    assert not (tmp_path / "runs").exists()  # --plan writes nothing
    assert moon(*GRID, "--objective", "mixup", "--detector", "none")[0] == 0
    (failed,) = tmp_path.glob("runs/grid/*")
    (failed / "result.json").unlink()
    (failed / "failure.json").write_text('{"message": "pip install \'x[demo]\'"}')
    assert "x[demo]" in moon(*GRID, "--objective", "mixup", "--plan")[1]


@pytest.mark.slow
def test_grid_rejects_runs_on_other_training_data_and_rescores_changed_sets(moon, in_this_process, data_root, tmp_path):
    run = ("grid", "part", "--net", "lenet-norm", "--epochs", "1", "--batch-size", "64", "--objective", "mixup")
    declared = "[part]\nknown = 'mnist'\nnear = ['notmnist']\nfar = ['dtd']\n"
    (data_root / "benchmarks.toml").write_text(declared)
    assert moon(*run, "--detector", "msp")[0] == 0
    (folder,) = tmp_path.glob("runs/grid/part-*")
    first = json.loads((folder / "scores.json").read_text())
    # The same command does nothing. Changed images of a set, and other sets, are scored.
    assert moon(*run, "--detector", "msp")[0] == 0
    assert json.loads((folder / "scores.json").read_text()) == first
    np.savez(data_root / "dtd" / "test.npz", images=np.zeros((7, 32, 32, 3), np.uint8), labels=np.zeros(7, int))
    (data_root / "benchmarks.toml").write_text(declared.replace("near = ['notmnist']", "near = ['fashionmnist']"))
    code, out, _ = moon(*run, "--detector", "msp")
    assert code == 0
    assert "known 90" in out
    assert "dtd 7 " in " ".join(out.split())
    now = json.loads((folder / "scores.json").read_text())
    assert (now["images"]["dtd"], now["far"]) == (7, ["dtd"])
    assert "notmnist" not in now["near"]
    # A run cannot continue with another preparation or with other training images.
    (data_root / "benchmarks.toml").write_text(f"{declared}mean = [0.1]\n")
    fails(moon(*run, "--detector", "msp"), 3, "was started with another preparation of its benchmark", "another folder")
    (data_root / "benchmarks.toml").write_text(declared)
    images = np.load(data_root / "mnist" / "train.npz")
    np.savez(data_root / "mnist" / "train.npz", images=255 - images["images"], labels=images["labels"])
    fails(moon(*run, "--detector", "msp"), 3, "was started with other images or labels of its benchmark (train)")
    fails(moon("score", str(folder), "--detector", "msp"), 3, "was started with other images or labels")


@pytest.mark.slow
def test_paper_lists_plans_runs_and_shows(moon, in_this_process, data_root, tmp_path):
    # A net that the paper does not replace by its ResNet-18.
    declared = "known = 'mnist'\nnet = 'lenet-norm'\nnear = ['notmnist']\nfar = ['dtd']\n"
    (data_root / "benchmarks.toml").write_text(f"[small]\n{declared}[tiny]\n{declared}")
    small = ("--benchmark", "cifar10=small", "cifar100=tiny", "--epochs", "1", "--seeds", "1", "--mini", "--out", "p")
    code, out, _ = moon("paper", "list", *small)
    assert code == 0
    assert "0 of 6" in out
    code, out, _ = moon("paper", "plan", "table16", *small)
    assert code == 0
    assert "4 waiting" in out
    assert not (tmp_path / "p").exists()
    code, out, _ = moon("paper", "run", "table16", "figure4", *small)
    assert code == 0, out
    assert "small replaces the paper's CIFAR-10" in out
    assert "tiny replaces the paper's CIFAR-100" in out
    written = {path.name for path in (tmp_path / "p" / "paper").iterdir()}
    assert written == {f"{k}.{s}" for k in ("table16", "figure4") for s in ("md", "csv", "tex")} | {
        "figure4.pdf",
        "figure4.svg",
        "figure4.png",
    }
    assert moon("paper", "show", "table16", *small)[0] == 0
    code, out, _ = moon("paper", "show", "table1", *small)  # from runs that were made for another table
    assert code == 0
    code, out, _ = moon("paper", "show", "flops", *small)
    assert "7.4e+17" in out
    fails(moon("paper", "show", "tabel1"), 2, "did you mean 'table1'")
    fails(moon("paper", "run", "table1"), 3, "none of the data was found (cifar10)")
    code, out, _ = moon("paper", "plan", "table6")
    assert "cifar100 is not under" in out
    fails(moon("paper", "run"), 2, "needs the ID")
    fails(moon("paper", "run", "table1", "--benchmark", "cifar=mnist"), 2, "did you mean 'cifar10'")


@pytest.mark.slow
def test_report_writes_a_page(moon, tmp_path):
    assert moon(*TRAIN, "--out", "run")[0] == 0
    fails(moon("report", "run"), 2, "not scored; run `moon score run`")
    code, out, _ = moon("score", "run", "--detector", "msp", "--mirrored")
    assert code == 0
    assert "averaged over each image and its mirror image" in " ".join(out.split())
    fails(moon("report", "run"), 2, "not scored; run `moon score run`")  # mirrored scores do not count
    code, out, _ = moon("score", "run", "--detector", "msp", "--keep-evidence")
    assert code == 0
    kept = len(list((tmp_path / "run" / "evidence").iterdir()))
    assert f"evidence: run/evidence, {kept} files, " in " ".join(out.split())
    code, out, _ = moon("report", "run", "--title", "A page")
    assert code == 0
    assert "run/report.html: 1 run" in out
    assert "<title>A page</title>" in (tmp_path / "run" / "report.html").read_text()
    fails(moon("report", "nowhere"), 2, "is not a folder")
    fails(moon("report", "run", "--out", "page.txt"), 2, ".html")


@pytest.mark.slow
def test_grid_stops_with_ctrl_c_and_resumes(data_root, tmp_path):
    command = [
        sys.executable,
        "-m",
        "moon",
        *GRID[:-2],
        "--jobs",
        "1",
        "--objective",
        "cross-entropy",
        "--epochs",
        "20",
    ]
    command += ["--seed", "0", "1", "--detector", "msp", "--checkpoint-seconds", "0"]
    settings = {"cwd": tmp_path, "env": os.environ | {"MOON_DATA": str(data_root)}, "text": True}
    driver = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background jobs ignore it
        **settings,
    )
    while not list(tmp_path.glob("runs/grid/*/checkpoints/0*")):
        time.sleep(0.05)
        assert driver.poll() is None
    driver.send_signal(signal.SIGINT)
    _, err = driver.communicate(timeout=1200)
    assert driver.returncode == 130
    assert "the same command resumes" in err
    assert "Traceback" not in err
    done = subprocess.run(command, capture_output=True, check=False, **settings)
    assert done.returncode == 0, done.stderr
    assert "all 2 runs are done" in done.stdout
