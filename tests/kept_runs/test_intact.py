"""Kept runs that are missing or damaged are reported before any table is made."""

import shutil
from pathlib import Path

import compact
import intact
import pytest
from kept import Kept
from networks import COLLECTIONS

ROOT = Path(__file__).parents[2]


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A copy of the kept runs of the demo; no other folders are expected."""
    shutil.copytree(ROOT / "results" / "demo", tmp_path / "demo")
    monkeypatch.setattr(intact, "COLLECTIONS", {"demo": COLLECTIONS["demo"]})
    return tmp_path


def problems(runs):
    return [line.replace(f"{runs}/", "") for line in intact.problems(Kept(runs))]


def first(runs, name):
    return sorted(runs.glob(name))[0]


@pytest.mark.parametrize("name", ["metrics.csv.gz", "scores.json", "*moon*/result.json", "*moon*/recipe.json"])
def test_damaged_and_missing_files_are_named(runs, name):
    path = first(runs, f"demo/{name}")
    shown = path.relative_to(runs)
    path.write_bytes(path.read_bytes()[:200])
    assert problems(runs) == [f"results/{shown} was changed; restore it (git restore results)"]
    path.unlink()
    assert problems(runs) == [f"results/{shown} is missing; restore it (git restore results)"]


def test_runs_that_were_not_kept_by_the_program_are_named(runs):
    shutil.copytree(first(runs, "demo/*moon*"), runs / "demo" / "run")
    shutil.copytree(first(runs, "demo/*moon*"), runs / "new" / "run")
    assert problems(runs) == [
        "results/new is in no collection; add it to COLLECTIONS in results/networks.py",
        "results/demo/run/recipe.json was added by hand; keep runs with results/keep.py",
        "results/demo/run/result.json was added by hand; keep runs with results/keep.py",
    ]


def test_runs_that_cannot_be_compared_are_refused(runs, monkeypatch):
    shutil.copytree(runs / "demo", runs / "demo-2")
    summaries = compact.read(runs / "demo-2")
    digests = dict.fromkeys(next(iter(summaries.values()))["sha256"], "0" * 64)
    compact.write(runs / "demo-2", {name: each | {"sha256": digests} for name, each in summaries.items()})
    compact.write_digests(runs / "demo-2")
    both = {"demo": type(COLLECTIONS["demo"])(["demo", "demo-2"], epochs=30)}
    monkeypatch.setattr(intact, "COLLECTIONS", both)
    monkeypatch.setattr(intact, "FOLDERS", ["demo", "demo-2"])
    monkeypatch.setattr("kept.COLLECTIONS", both)
    assert [line.split(" was ")[1] for line in problems(runs)] == ["scored on other images than the rest"]


def test_two_runs_of_one_name_and_seed_are_refused(runs, monkeypatch):
    monkeypatch.setattr("kept.network_name", lambda recipe, collection: "rigl95/plain")
    (line,) = problems(runs)
    assert line.endswith("have the same name, rigl95/plain, and seed")
