"""Kept runs that are missing or damaged are reported before any table is made."""

import json
import shutil
from pathlib import Path

import intact
import pytest
from kept import Kept
from networks import COLLECTIONS, FOLDERS, Collection

ROOT = Path(__file__).parents[2]
RESTORE = "(or, as this run is kept, restore it: git restore results)"


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A copy of the kept runs of the demo and of two mirrored ones; no other folders are expected."""
    shutil.copytree(ROOT / "results" / "demo", tmp_path / "demo")
    for path in sorted((ROOT / "results" / "cifar10-search").glob("*rigl95-moon-logitnorm*"))[:2]:
        shutil.copytree(path, tmp_path / "cifar10-search" / path.name)
    collections = {"demo": COLLECTIONS["demo"], "cifar10-search": Collection({"cifar10-search": 2})}
    monkeypatch.setattr(intact, "FOLDERS", {"demo": FOLDERS["demo"], "cifar10-search": 2})
    monkeypatch.setattr(intact, "MIRRORED", {"cifar10-search": 2})
    monkeypatch.setattr(intact, "OTHER_FOLDERS", {})
    monkeypatch.setattr(intact, "COLLECTIONS", collections)
    monkeypatch.setattr("kept.COLLECTIONS", collections)
    return tmp_path


def problems(runs):
    return [line.replace(f"{runs}/", "") for line in intact.problems(Kept(runs))]


def first(runs, name):
    return sorted(runs.glob(name))[0]


def test_nothing_is_wrong_with_the_kept_runs(kept):
    assert list(intact.problems(kept)) == []


def test_nothing_is_wrong_with_a_copy(runs):
    assert problems(runs) == []


def test_missing_and_new_runs_are_counted(runs):
    shutil.rmtree(first(runs, "demo/*"))
    shutil.rmtree(first(runs, "cifar10-search/*/mirrored"))
    shutil.copytree(first(runs, "demo/*"), runs / "new" / "run")
    advice = "restore what is missing (git restore results), or, if you keep other runs now, change the number in"
    assert problems(runs) == [
        f"results/demo: has 8 runs, not 9; {advice} results/networks.py",
        f"results/new: has 1 runs, not 0; {advice} results/networks.py",
        f"results/cifar10-search: has 1 mirrored runs, not 2; {advice} results/intact.py",
    ]


def test_damaged_files_are_named(runs):
    damaged = [first(runs, f"demo/{pattern}") for pattern in ("*moon*/result.json", "*cross*/scores.json")]
    damaged += [first(runs, "cifar10-search/*/mirrored/scores.json")]
    for path in damaged:
        path.write_text(path.read_text()[:200])
    lines = problems(runs)
    assert len(lines) == len(damaged)
    for path in damaged:
        (line,) = [line for line in lines if line.startswith(str(path.relative_to(runs)))]
        assert line.endswith(RESTORE)


def test_a_folder_that_is_missing(runs):
    shutil.rmtree(runs / "demo")
    assert "results/demo is missing; its tables cannot be made without it" in problems(runs)


def test_runs_that_cannot_be_compared_are_refused(runs):
    run = first(runs, "demo/*")
    path = run / "scores.json"
    scores = json.loads(path.read_text())
    scores["sha256"] = dict.fromkeys(scores["sha256"], "0" * 64)
    scores.pop("content_sha256", None)
    path.write_text(json.dumps(scores))
    assert [line.split(" was ")[1] for line in problems(runs)] == ["scored on other images than the rest"]


def test_two_runs_of_one_name_and_seed_are_refused(runs, monkeypatch):
    monkeypatch.setattr("kept.network_name", lambda recipe, collection: "rigl95/plain")
    assert all(line.endswith("have the same name, rigl95/plain, and seed") for line in problems(runs))
    assert len(problems(runs)) == 2
