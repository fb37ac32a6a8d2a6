"""Grids: every run is done exactly once, even if workers and drivers are killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from moon.grid import DataFacts, Grid, Job, Processes, State, worker
from moon.grid.file import read_file
from moon.grid.grid import scored_with
from moon.grid.todo import Todo
from moon.recipe import Recipe
from moon.recipe.expand import expand
from moon.run.folder import is_done
from moon.run.images import BenchmarkImages
from moon.score.score import score_run
from moon.training import is_locked, locked

SMALL = {"benchmark": "mnist", "net": "lenet-norm", "epochs": 2, "batch_size": 64}


def small(data_root, **axes) -> list[Recipe]:
    return expand(data_root, SMALL | {"objective": "cross-entropy"} | axes)


def processes(data_root, places=2) -> Processes:
    return Processes(places, data_root, ["cpu"], threads=1, checkpoint_seconds=0)


def metrics(folder: Path) -> dict:
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        result, scores = json.loads(path.read_text()), json.loads((path.parent / "scores.json").read_text())
        found[path.parent.name] = result["known"], result["model_sha256"], scores["detectors"]
    return found


def test_the_state_of_a_run_is_read_from_its_folder(data_root, tmp_path):
    (recipe,) = small(data_root)
    planned = Grid.plan(tmp_path, [recipe], ["msp"])
    (job,) = planned.jobs
    assert job.state() is State.WAITING
    with locked(job.folder):
        assert job.state() is State.RUNNING
    assert job.state() is State.WAITING
    job.failure.write_text('{"message": "no"}')
    assert (job.state(), job.reason()) == (State.FAILED, "no")
    planned.forget_failures()
    (job.folder / "result.json").write_text("{}")
    assert job.state() is State.WAITING  # not scored yet
    (job.folder / "todo.json").unlink()
    assert job.state() is State.DONE
    assert (job.folder / "recipe.json").exists()


@pytest.mark.slow
def test_runs_are_done_and_scored_once(data_root, tmp_path):
    planned = Grid.plan(tmp_path, small(data_root, seed=[0, 1]), ["msp", "unknown"])
    planned.run(processes(data_root))
    assert set(planned.states().values()) == {State.DONE}
    assert planned.seconds_left(2) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    second = Grid.plan(tmp_path, small(data_root, seed=[0, 1]), ["msp", "unknown"])
    second.run(processes(data_root))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before
    # Detectors that are requested before a run is scored are added to those it waits for.
    for names in (["msp", "ebo"], ["msp", "knn"]):
        (job,) = Grid.plan(tmp_path, small(data_root, seed=[1]), names).jobs
    assert Todo.read(job.folder).detectors == ("ebo", "knn")
    worker.work(job.folder, data_root)
    assert set(scored_with(job.folder)[0]) == {"msp", "unknown", "ebo", "knn"}
    # An additional detector is scored without training again; one that does not fit the model is left out.
    more = Grid.plan(tmp_path, small(data_root, seed=[0]), ["msp", "ebo", "unknown"])
    assert set(more.states().values()) == {State.WAITING}
    worker.work(more.jobs[0].folder, data_root)
    scores = json.loads((more.jobs[0].folder / "scores.json").read_text())
    assert set(scores["detectors"]) == {"msp", "ebo"}
    assert list(scores["left_out"]) == ["unknown"]
    assert (more.jobs[0].folder / "result.json").stat().st_mtime_ns == before[more.jobs[0].folder / "result.json"]


def test_adding_a_detector_leaves_tuned_scores_as_they_are(data_root, tuning_set, trained_runs, tmp_path):
    run = trained_runs(objective="cross-entropy", epochs=3)
    folder, recipe = shutil.copytree(run, tmp_path / run.name), Recipe.load(run / "recipe.json")
    tuned = BenchmarkImages.open(data_root, "mnist", tune_on=(tuning_set,))
    score_run(folder, BenchmarkImages.open(data_root, "mnist"), ["msp"])
    before, _ = score_run(folder, tuned, ["gen"])
    assert before["search"]["gen"]["on"] == {tuning_set: 30}
    (job,) = Grid.plan(tmp_path, [recipe], ["msp", "gen", "mls"]).jobs
    assert Todo.read(job.folder).detectors == ("mls",)
    worker.work(job.folder, data_root)
    after = json.loads((folder / "scores.json").read_text())
    assert list(after["detectors"]) == ["mls", "gen", "msp"]
    assert after["search"] == before["search"]
    assert after["detectors"]["gen"] == before["detectors"]["gen"]


def test_scores_on_other_sets_are_computed_again_for_all_detectors(data_root, trained_runs, tmp_path):
    run = trained_runs(objective="cross-entropy", epochs=3)
    folder, recipe = shutil.copytree(run, tmp_path / run.name), Recipe.load(run / "recipe.json")
    score_run(folder, BenchmarkImages.open(data_root, "mnist"), ["msp", "gen"])
    (job,) = Grid.plan(tmp_path, [recipe], ["msp", "mls"], near=["dtd"], far=["notmnist"]).jobs
    assert Todo.read(job.folder) == Todo(("msp", "gen", "mls"), ("dtd",), ("notmnist",))


@pytest.mark.slow
def test_failures_due_to_the_recipe_are_reported_and_not_retried(data_root, tmp_path):
    good, bad = *small(data_root), *small(data_root, lr=1e20)
    planned = Grid.plan(tmp_path, [bad, good], [])
    planned.run(processes(data_root, places=1))  # the process of the failed run takes the next one
    states = planned.states()
    assert (states[good.name], states[bad.name]) == (State.DONE, State.FAILED)
    job = next(job for job in planned.jobs if job.recipe == bad)
    assert "not finite" in job.reason()
    assert job.tries == 0
    started = []

    class Watched(Processes):
        def start(self, folder):
            started.append(folder)
            return super().start(folder)

    Grid.plan(tmp_path, [good, bad], []).run(Watched(1, data_root, ["cpu"], 1))
    assert started == []


def test_a_single_name_is_not_read_letter_by_letter(data_root, tmp_path):
    (recipe,) = small(data_root)
    (job,) = Grid.plan(tmp_path, [recipe], "msp", near="dtd", far="notmnist").jobs
    assert job.detectors == ["msp"]
    assert Todo.read(job.folder) == Todo(("msp",), ("dtd",), ("notmnist",))
    assert Grid.of(tmp_path, [recipe], {recipe: "ebo"}).jobs[0].detectors == ["ebo"]


def test_failures_due_to_the_machine_are_retried_a_few_times(data_root, tmp_path):
    class Broken:
        places = 1
        started = 0

        def start(self, folder):
            self.started += 1
            return folder

        def ended(self, handle):
            return "the machine is on fire"

        def warnings(self, handle):
            return []

        def stop(self, handles):
            assert not handles

    workers = Broken()
    planned = Grid.plan(tmp_path, small(data_root), [], retries=3)
    planned.run(workers, poll=0)
    assert workers.started == 4
    assert planned.jobs[0].reason() == "the machine is on fire"
    assert planned.jobs[0].state() is State.WAITING  # the next driver tries again


def test_runs_are_scored_on_the_sets_that_the_grid_names(data_root, tmp_path, monkeypatch):
    (recipe,) = small(data_root, epochs=1)
    (job,) = Grid.plan(tmp_path, [recipe], ["msp"], near=["dtd"], far=["notmnist"]).jobs
    assert Todo.read(job.folder) == Todo(("msp",), ("dtd",), ("notmnist",))
    opened = []
    original = worker.BenchmarkImages.open
    open_images = lambda *a: opened.append(a) or original(*a)  # noqa: E731
    worker.work(job.folder, data_root, open_images=open_images)
    assert len(opened) == 1  # images are read once for training and scoring
    scores = json.loads((job.folder / "scores.json").read_text())
    assert (scores["near"], scores["far"]) == (["dtd"], ["notmnist"])
    # Scores on other sets are missing scores; without names, those that exist are accepted.
    states = [
        next(iter(Grid.of(tmp_path, [recipe], ["msp"], **sets).states().values()))
        for sets in ({}, {"near": ["dtd"]}, {"near": ["dtd"], "far": ["notmnist"]}, {"near": ["fashionmnist"]})
    ]
    assert states == [State.DONE, State.DONE, State.DONE, State.WAITING]
    (job,) = Grid.plan(tmp_path, [recipe], ["msp"], near=["fashionmnist"]).jobs
    worker.work(job.folder, data_root)
    scores = json.loads((job.folder / "scores.json").read_text())
    assert (scores["near"], scores["far"]) == (["fashionmnist"], ["dtd"])  # far: those of the benchmark that exist


def test_sets_that_a_driver_names_while_a_run_is_scored_are_scored_as_well(data_root, tmp_path, monkeypatch):
    (recipe,) = small(data_root, epochs=1)
    (job,) = Grid.plan(tmp_path, [recipe], ["msp"], near=["dtd"]).jobs
    score_run = worker.score_run

    def score_and_plan(*arguments, **settings):
        monkeypatch.setattr(worker, "score_run", score_run)
        Grid.plan(tmp_path, [recipe], ["msp"], near=["notmnist"])
        return score_run(*arguments, **settings)

    monkeypatch.setattr(worker, "score_run", score_and_plan)
    worker.work(job.folder, data_root)
    assert json.loads((job.folder / "scores.json").read_text())["near"] == ["notmnist"]
    assert is_done(job.folder)


def test_scores_are_computed_again_if_the_sets_change_but_not_if_there_are_none(data_root, tmp_path, fabricate):
    (recipe,) = small(data_root)
    folder = fabricate(tmp_path, recipe, detectors=["msp"])
    summary = json.loads((folder / "scores.json").read_text())
    (folder / "scores.json").write_text(json.dumps(summary | {"near": ["notmnist"], "far": []}))
    for near, far, state in ([], [], State.DONE), (["notmnist"], [], State.DONE), ([], ["notmnist"], State.WAITING):
        facts = DataFacts({}, {"sha256": {}, "near": near, "far": far})
        planned = Grid.plan(tmp_path, [recipe], ["msp"], facts=lambda _, facts=facts: facts)
        assert planned.states() == {recipe.name: state}, (near, far)


DRIVER = """
import sys
from pathlib import Path
from moon.grid import Grid, Processes
from moon.grid.file import read_file
root, out, file, places = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
Grid.plan(out, read_file(root, file).recipes, ["msp"], retries=100).run(Processes(places, root, ["cpu"], 1, 0))
"""


def workers_of(out: Path) -> list[int]:
    """The processes that hold run folders of the grid."""
    found = []
    for lock in out.glob("*/lock"):
        text = lock.read_text().strip()
        if text and is_locked(lock.parent):
            found.append(int(text))
    return found


@pytest.fixture
def one_thread():
    """This process computes in one thread, as the workers do: the number of threads changes the rounding."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_every_run_is_done_once_with_the_same_metrics_if_processes_are_killed_at_random(
    data_root, tmp_path, one_thread
):
    # 12 runs; workers and drivers are killed while two independent drivers work on one grid.
    file = tmp_path / "compare.toml"
    file.write_text(
        'benchmark = "mnist"\nnet = "lenet-norm"\nepochs = 3\nbatch_size = 64\ndelta_t = 2\n'
        'objective = ["cross-entropy", "moon"]\nset.quiet_epochs = 1\nsparsity = [0.8, 0.9]\nseed = [0, 1, 2]\n'
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def drive(out, places=2):
        command = [sys.executable, "-c", DRIVER, str(data_root), str(out), str(file), str(places)]
        return subprocess.Popen(command, env=environment)

    rng, out = random.Random(0), tmp_path / "killed"
    drivers, kills = [drive(out), drive(out, 1)], 0
    deadline = time.monotonic() + 3000  # a guard against hanging
    while any(driver.poll() is None for driver in drivers) or kills < 8:
        assert time.monotonic() < deadline
        time.sleep(rng.uniform(0.3, 2.5))
        for index, driver in enumerate(drivers):
            if driver.poll() is not None and not _all_done(out):
                drivers[index] = drive(out, 1)
        if kills < 8:
            running = workers_of(out)
            if rng.random() < 0.3:
                driver = rng.choice(drivers)
                driver.kill()
                driver.wait()
                kills += 1
            elif running:
                with suppress(ProcessLookupError):  # it may have ended by itself
                    os.kill(rng.choice(running), signal.SIGKILL)
                kills += 1
        elif _all_done(out):
            break
    for driver in drivers:
        driver.wait(1200)
    # The expected ones are those of runs that are executed one after the other in this process.
    for job in Grid.plan(tmp_path / "uninterrupted", read_file(data_root, file).recipes, ["msp"]).jobs:
        worker.work(job.folder, data_root)
    found, expected = metrics(out), metrics(tmp_path / "uninterrupted")
    assert len(expected) == 12
    assert found == expected
    for folder in out.iterdir():
        epochs = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
        assert epochs == [0, 1, 2], folder  # each epoch once


def _all_done(out: Path) -> bool:
    folders = list(out.iterdir()) if out.exists() else []
    return len(folders) == 12 and all(is_done(folder) for folder in folders)


def test_a_job_reports_its_progress(data_root, tmp_path):
    (recipe,) = small(data_root, epochs=7)
    job = Job(recipe, tmp_path)
    assert (job.epochs_done(), job.seconds()) == (0, 0)
    (tmp_path / "log.jsonl").write_text('{"epoch": 0, "seconds": 1.5}\n{"epoch": 1, "seconds": 2.5}\n')
    assert (job.epochs_done(), job.seconds()) == (2, 4)
    planned = Grid(tmp_path, [job])
    assert planned.seconds_left(places=1) == pytest.approx(5 * 2)


@pytest.mark.parametrize(("name", "content"), [("todo.json", "[]"), ("data.json", "{")])
def test_a_damaged_file_is_the_failure_of_its_run(data_root, tmp_path, name, content):
    recipes = small(data_root, seed=[0, 1])
    Grid.plan(tmp_path, recipes, ["msp"])
    (tmp_path / recipes[0].name / name).write_text(content)
    facts = DataFacts({}, {"sha256": {}, "near": ["dtd"], "far": []})
    planned = Grid.plan(tmp_path, recipes, ["msp"], facts=lambda _: facts)
    assert list(planned.states().values()) == [State.FAILED, State.WAITING]
    assert str(tmp_path / recipes[0].name / name) in planned.jobs[0].reason()


@pytest.mark.parametrize(
    ("name", "content"), [("log.jsonl", "{}\n{}\n"), ("scores.json", "[]"), ("failure.json", "[]")]
)
def test_a_damaged_file_does_not_stop_a_grid(data_root, tmp_path, name, content):
    (recipe,) = small(data_root)
    (tmp_path / recipe.name).mkdir()
    (tmp_path / recipe.name / name).write_text(content)
    planned = Grid.plan(tmp_path, [recipe], ["msp"])
    (job,) = planned.jobs
    assert planned.states() == {recipe.name: State.FAILED if name == "failure.json" else State.WAITING}
    assert (job.epochs_done(), job.seconds(), planned.seconds_left(1)) == (0, 0, None)
    assert job.reason() == (f"{job.failure}: is damaged" if name == "failure.json" else "")


def test_a_run_that_cannot_be_started_does_not_stop_the_others(data_root, tmp_path):
    planned = Grid.plan(tmp_path, small(data_root, seed=[0, 1]))

    class Workers:
        places = 1

        def start(self, folder):
            if folder == planned.jobs[0].folder:
                raise ValueError("worker.log: is not a regular file; delete it")
            (folder / "result.json").write_text("{}")

        def ended(self, handle):
            return ""

        def warnings(self, handle):
            return []

        def stop(self, handles):
            pass

    planned.run(Workers(), poll=0)
    assert list(planned.states().values()) == [State.FAILED, State.DONE]
    assert planned.jobs[0].reason() == "worker.log: is not a regular file; delete it"
