"""The kept scores of every image: AUROC from their levels is that of `scores.json`, detector by detector."""

from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from moon import BenchmarkImages, make_recipe, score_run, train_run
from moon.metrics import auroc
from moon.records import read_record, write_record
from moon.results.collect import collect

RESULTS = Path(__file__).parents[2] / "results"
kept_runs, keep_runs = import_module("kept"), import_module("keep")
FOLDERS = ("cifar10-open", "cifar10", "cifar10-300", "cifar10-search-2", "tin100", "tin100-64", "mnist", "mnist-lenet")


@pytest.fixture(scope="module")
def runs():
    """The runs by name, each with the folders that keep it; a repeated run has the name of the first one."""
    found = {}
    for folder in FOLDERS:
        for run in collect([RESULTS / folder])[0]:
            found.setdefault(run.folder.name, []).append(run)
    return found


def test_levels_are_kept_for_each_run_since_version_0_3(runs):
    names = {name for name, found in runs.items() if found[0].result["software"]["moon"] >= "0.3"}
    assert names == {path.stem for path in (RESULTS / "scores").glob("*.npz")}


@pytest.mark.parametrize("path", sorted((RESULTS / "scores").glob("*.npz")), ids=lambda path: path.stem)
def test_levels_belong_to_the_detectors_they_are_named_after(path, runs):
    newest, *others = runs[path.stem]
    levels = kept_runs.Kept(RESULTS).levels(newest)
    groups = set()
    for run in (newest, *(run for run in others if run.result == newest.result)):
        for key in levels.keys() - {"correct"}:
            detector, _, name = key.partition("/")
            group = next((group for group in ("near", "far") if name in run.summary[group]), None)
            if group is not None:
                expected = run.summary["detectors"][detector]["sets"][name]["auroc"]
                assert auroc(levels[f"{detector}/known"], levels[key]) == pytest.approx(expected, abs=5e-4), key
                groups.add(group)
    assert groups == {"near", "far"}


def test_levels_of_a_repeated_run_are_not_taken_for_those_of_the_first(runs):
    kept = kept_runs.Kept(RESULTS)
    repeated, first = runs["cifar10-part-rigl95-moon-s1-df1e3316"]
    assert kept.levels(repeated)["correct"].mean() == pytest.approx(repeated.summary["known"]["accuracy"])
    with pytest.raises(ValueError, match=r"has the scores of another run than .*/cifar10/"):
        kept.levels(first)
    same_accuracy = replace(first, summary=repeated.summary)
    with pytest.raises(ValueError, match=r"has the scores of another run than .*/cifar10/"):
        kept.levels(same_accuracy)


def test_scores_of_another_run_of_the_same_name_are_not_replaced(tmp_path):
    images = BenchmarkImages.open(tmp_path, "digits")
    recipe = make_recipe("digits", "cross-entropy", net="lenet", epochs=1, batch_size=1024, topology="static")
    run = tmp_path / "runs" / recipe.name
    train_run(recipe, run, images)
    score_run(run, images, ["msp"])
    near = list(images.benchmark.near)
    with pytest.raises(SystemExit, match="nosuch was not scored; scored: "):
        keep_runs.keep(run, tmp_path / "kept" / "digits", ["nosuch"])
    assert not (tmp_path / "kept").exists()
    keep_runs.keep(run, tmp_path / "kept" / "digits", near)
    keep_runs.keep(run, tmp_path / "kept" / "again", near)
    path = tmp_path / "kept" / "scores" / f"{recipe.name}.npz"
    with np.load(path) as file:
        np.savez(path, **(dict(file) | {"model_sha256": np.zeros(32, np.uint8)}))
    with pytest.raises(SystemExit, match="has the scores of another run of this name; delete it"):
        keep_runs.keep(run, tmp_path / "kept" / "digits", near)
    with np.load(path) as file:
        older = {key: file[key] for key in file.files if key != "model_sha256"}
    np.savez(path, **older)
    with pytest.raises(SystemExit, match="does not say whose scores it has"):
        keep_runs.keep(run, tmp_path / "kept" / "digits", near)


def test_a_repeated_run_does_not_replace_the_first_one(tmp_path):
    images = BenchmarkImages.open(tmp_path, "digits")
    recipe = make_recipe("digits", "cross-entropy", net="lenet", epochs=1, batch_size=1024, topology="static")
    run, kept = tmp_path / "runs" / recipe.name, tmp_path / "kept" / "digits"
    train_run(recipe, run, images)
    score_run(run, images, ["msp"])
    keep_runs.keep(run, kept, list(images.benchmark.near))
    path = kept / run.name / "result.json"
    write_record(path, read_record(path) | {"model_sha256": "0" * 64})
    (kept.parent / "scores" / f"{run.name}.npz").unlink()  # first runs have none
    before = (kept / run.name / "scores.json").read_bytes()
    with pytest.raises(SystemExit, match="is another run of this name; keep a repeated run in another folder"):
        keep_runs.keep(run, kept, list(images.benchmark.near))
    assert (kept / run.name / "scores.json").read_bytes() == before
    assert not (kept.parent / "scores" / f"{run.name}.npz").exists()


def test_scores_that_are_not_kept_are_an_error_that_names_the_file(runs):
    first = next(found[0] for name, found in runs.items() if name.startswith("cifar10-part-rigl80-cross-entropy-s0"))
    with pytest.raises(ValueError, match=rf"scores/{first.folder.name}\.npz"):
        kept_runs.Kept(RESULTS).levels(first)
