"""`moon demo`: what it shows, and what it says at the end. `test_main.py` runs all of it."""

import json
import sys

import numpy as np
import pytest

from moon import demo, deploy
from moon.cli import demo as command, runner, unknown_sets
from moon.errors import MissingPackage
from moon.grid import Grid, Processes, State
from moon.report import page
from moon.results.answers import AnsweredImages

MEASURED = {"known": {"accepted": 0.951}, "letters": {"rejected": 0.5}, "textures": {"rejected": 0.9}}
ROW = AnsweredImages("Digits", np.zeros((2, 28, 28, 1), np.uint8), ["1", "unknown"], [0.5, 0.01], [True, False])


@pytest.fixture
def finished(fabricate, tmp_path, monkeypatch):
    """The finished runs of two seeds without weights: the page, the packed network and its answers are stubs."""
    monkeypatch.setattr(unknown_sets, "data_facts", lambda *_: None)
    facts = {"bytes": 25_300, "dense_bytes": 248_300, "measured": MEASURED}
    monkeypatch.setattr(deploy, "pack_run", lambda *_, **__: facts, raising=False)
    times = {"moon-runtime": 0.0001234, "ONNX Runtime": 0.0004567}
    monkeypatch.setattr(demo, "seconds_per_image", lambda *_: times)
    monkeypatch.setattr(demo, "answered", lambda *_: [ROW])
    monkeypatch.setattr(page, "write_report", lambda _, target, title, detector: target.write_text(title))
    for runs in demo.recipes(epochs=2, seeds=2).values():
        for recipe in runs:
            sets = {"near": ["letters"], "far": ["textures"]}
            path = fabricate(tmp_path / "demo", recipe, **sets) / "scores.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | sets))
    return ("demo", "--epochs", "2", "--out", "demo")


def test_the_demo_ends_with_a_network_in_use(moon, finished, tmp_path, monkeypatch):
    monkeypatch.setattr(command.shutil, "which", lambda _: None)
    monkeypatch.setattr(sys, "argv", [".venv/bin/moon", "demo"])
    code, out, err = moon(*finished)
    assert (code, err) == (0, "")
    assert "plain RigL" in out
    assert "RigL + outliers was also trained with photos as outliers, so that set is not scored\n" in out
    assert out.splitlines()[-6:] == [
        "full report, to open in a browser: demo/report.html",
        "packed: RigL + outliers with the detector ebo: demo/digits.moon, 25.3 kB (dense float32: 248 kB)",
        "time per image, one thread: 0.12 ms (ONNX Runtime: 0.46 ms)",
        "test images accepted: digits 95.1%; rejected as unknown: letters 50.0%, textures 90.0%",
        "images it never saw, with its answers: demo/answers.png",
        "next: .venv/bin/moon predict demo/digits.moon IMAGE, or your own images: .venv/bin/moon data import --help",
    ]
    assert (tmp_path / "demo" / "answers.png").stat().st_size > 1000
    assert (tmp_path / "demo" / "report.html").read_text().startswith("A 95%-sparse LeNet")
    assert (tmp_path / "demo" / "known-against-unknown.png").stat().st_size > 1000


def test_finished_runs_are_not_trained_again(moon, finished, monkeypatch):
    monkeypatch.setattr(Processes, "start", lambda *_: pytest.fail("nothing is missing"))
    _, out, _ = moon(*finished)
    assert "training" not in out
    assert "too few seeds" in out
    assert "±" not in out
    code, out, _ = moon(*finished, "--seeds", "2")
    assert code == 0
    assert "training" not in out
    assert "±" in out


def test_without_the_runtime_no_network_is_packed(moon, finished, monkeypatch):
    def pack_run(*_, **__):
        raise MissingPackage("moon-runtime is not installed (pip install moon-runtime)")

    monkeypatch.setattr(deploy, "pack_run", pack_run, raising=False)
    code, out, err = moon(*finished)
    assert (code, err) == (0, "")
    assert out.splitlines()[-2:] == [
        "no network is packed and used: moon-runtime is not installed (pip install moon-runtime)",
        "next: moon train digits --epochs 20, or your own images: moon data import --help",
    ]


@pytest.mark.parametrize(("cores", "places"), [(1, 1), (2, 2), (8, 2)])
def test_the_runs_are_trained_side_by_side(moon, monkeypatch, tmp_path, cores, places):
    seen = []

    def execute(grid: Grid, workers) -> None:
        seen.append((workers.places, workers.threads, [job.detectors for job in grid.jobs]))
        for job in grid.jobs:
            (job.folder / "failure.json").write_text('{"message": "no images"}')
            assert job.state() is State.FAILED

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(runner, "execute", execute)
    monkeypatch.setattr(runner, "cores", lambda: cores)
    monkeypatch.setattr(unknown_sets, "data_facts", lambda *_: None)
    for _ in range(2):  # a failed run is tried again
        code, out, err = moon("demo", "--epochs", "2", "--out", "demo", "--device", "cpu")
        assert code == 2
        assert err == (
            "moon demo: 2 of 2 runs failed, the first one: no images; correct the cause, then run the command again\n"
        )
        assert out == "training 2 networks for 2 epochs, scoring with 5 detectors\n"
    assert seen == [(places, None, [["msp", "odin", "ebo", "knn", "klm"]] * 2)] * 2
