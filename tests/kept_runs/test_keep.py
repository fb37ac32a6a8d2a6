"""Runs are kept in a compact form, which tables read and from which run folders can be written again."""

import shutil
from importlib import import_module
from pathlib import Path

import pytest

from moon import BenchmarkImages, load_result, make_recipe, read_scores, score_run, train_run
from moon.metrics import auroc
from moon.records import read_record, write_record
from moon.results.collect import collect

ROOT = Path(__file__).parents[2]
compact, keep, kept_runs = (import_module(name) for name in ("compact", "keep", "kept"))


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """A scored run, and its images."""
    root = tmp_path_factory.mktemp("runs")
    images = BenchmarkImages.open(root, "digits")
    recipe = make_recipe("digits", "cross-entropy", net="lenet", epochs=1, batch_size=1024, topology="static")
    train_run(recipe, root / recipe.name, images)
    score_run(root / recipe.name, images, ["msp", "knn"])
    return root / recipe.name, images.benchmark


def test_run_folders_that_are_written_again_have_the_same_metrics(scored, tmp_path):
    run, benchmark = scored
    keep.keep([run], tmp_path / "kept", list(benchmark.near))
    assert list(compact.damaged(tmp_path / "kept")) == []
    compact.unpack(tmp_path / "kept", tmp_path / "runs")
    ((before,), _), ((after,), left_out) = collect([run]), collect([tmp_path / "runs"])
    assert left_out == []
    assert after.summary["detectors"] == before.summary["detectors"]
    for key in ("known", "known_scaled", "temperatures", "sha256", "near", "far"):
        assert after.summary[key] == before.summary[key], key
    assert load_result(after.folder)["known"] == before.result["known"]


def test_run_folders_that_are_written_again_can_be_kept_again(tmp_path):
    folder = ROOT / "results" / "cifar10-300"  # some runs were scored with mirrored images, too, some were ranked
    before = compact.read(folder)
    compact.unpack(folder, tmp_path / "runs")
    runs = sorted((tmp_path / "runs").iterdir())
    keep.keep(runs, tmp_path / "kept", before[runs[0].name]["near"])
    assert compact.read(tmp_path / "kept") == before


def test_scores_of_single_images_are_kept_on_demand(scored, tmp_path):
    run, benchmark = scored
    keep.keep([run], tmp_path / "kept", list(benchmark.near))
    assert not (tmp_path / "kept" / "levels.npz").exists()
    keep.keep([run], tmp_path / "kept", list(benchmark.near), images=["knn"], log=True)
    (one,) = kept_runs.read_all(tmp_path / "kept")
    levels = kept_runs.Kept(tmp_path).levels(one)
    assert levels.keys() == {"correct", "knn/known", *(f"knn/{name}" for name in (*benchmark.near, *benchmark.far))}
    assert levels["correct"].mean() == pytest.approx(one.summary["known"]["accuracy"])
    _, scores = read_scores(run)
    for name in benchmark.far:
        expected = auroc(scores["knn"]["known"], scores["knn"][name])
        assert auroc(levels["knn/known"], levels[f"knn/{name}"]) == pytest.approx(expected, abs=0.01)
    assert (tmp_path / "kept" / run.name / "log.jsonl").read_bytes() == (run / "log.jsonl").read_bytes()


def test_what_cannot_be_kept_beside_the_other_runs_changes_nothing(scored, tmp_path):
    run, benchmark = scored
    folder, near = tmp_path / "kept", list(benchmark.near)
    with pytest.raises(SystemExit, match="nosuch was not scored; scored: "):
        keep.keep([run], folder, ["nosuch"])
    with pytest.raises(SystemExit, match="has no scores of single images with fisher"):
        keep.keep([run], folder, near, images=["fisher"])
    assert not folder.exists()
    keep.keep([run], folder, near)
    shutil.copytree(run, tmp_path / "other")
    with pytest.raises(ValueError, match="was scored on other images than the rest"):
        keep.keep([tmp_path / "other"], folder, [benchmark.far[0]])
    assert not (folder / "other").exists()
    assert list(compact.damaged(folder)) == []
    path = folder / run.name / "result.json"
    write_record(path, read_record(path) | {"model_sha256": "0" * 64})
    before = (folder / "metrics.csv.gz").read_bytes()
    with pytest.raises(SystemExit, match="is another run of this name; keep a repeated run in another folder"):
        keep.keep([run], folder, near)
    assert (folder / "metrics.csv.gz").read_bytes() == before
