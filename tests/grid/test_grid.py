"""Grids: what they are made of, and that every run is done exactly once, whatever is killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from moon.grid import grid, worker
from moon.grid.grid import Grid, Job, Processes, State
from moon.recipe.expand import labels, read_file, recipes
from moon.recipe.recipe import Recipe
from moon.training import locked

SMALL = {"benchmark": "mnist", "net": "lenet-norm", "epochs": 2, "batch_size": 64}


def test_a_grid_is_every_combination_once(data_root):
    found = recipes(
        data_root, SMALL | {"objective": "mixup", "topology": ["dense", "rigl"], "sparsity": [0.8, 0.9], "seed": [0, 1]}
    )
    assert len(found) == 2 * (1 + 2)  # a dense network has no sparsity
    assert {(r.topology, r.sparsity, r.seed) for r in found} == {
        ("dense", 0.0, 0), ("dense", 0.0, 1), ("rigl", 0.8, 0), ("rigl", 0.8, 1), ("rigl", 0.9, 0), ("rigl", 0.9, 1),
    }  # fmt: skip


def test_options_go_to_the_objectives_that_have_them(data_root):
    found = recipes(
        data_root, SMALL | {"objective": ["cross-entropy", "moon"], "set": {"final": [1, 2], "quiet_epochs": 1}}
    )
    options = sorted((r.objective, r.objective_options) for r in found)
    assert options == [
        ("cross-entropy", ()),
        ("moon", (("final", 1.0), ("quiet_epochs", 1))),
        ("moon", (("final", 2.0), ("quiet_epochs", 1))),
    ]
    with pytest.raises(ValueError, match="no objective of the grid has an option 'finale', did you mean 'final'"):
        recipes(data_root, SMALL | {"objective": ["cross-entropy", "moon"], "set": {"finale": 1}})


def test_trainings_with_a_name_are_an_axis(data_root):
    found = recipes(data_root, SMALL | {"preset": ["plain", "control"], "seed": [0, 1]})
    assert [(r.objective, r.lr_start, r.vote_share, r.seed) for r in found] == [
        ("cross-entropy", 0.1, 0.0, 0), ("cross-entropy", 0.1, 0.0, 1),
        ("cross-entropy", 0.12, 0.2, 0), ("cross-entropy", 0.12, 0.2, 1),
    ]  # fmt: skip
    (one,) = recipes(data_root, SMALL | {"preset": "without-lm", "set": {"quiet_epochs": 1}, "vote": 0.5})
    assert one.objective_options == (("final", 0.0), ("quiet_epochs", 1), ("schedule", "final"))
    assert one.vote_share == 0.5
    with pytest.raises(ValueError, match="preset 'control' has its objective, cross-entropy; leave out one"):
        recipes(data_root, SMALL | {"preset": "control", "objective": "moon", "epochs": 9})
    with pytest.raises(ValueError, match="option 'final' is what makes preset 'without-lm'; leave one of the two out"):
        recipes(data_root, SMALL | {"preset": ["plain", "without-lm"], "set": {"final": 2}, "epochs": 9})
    with pytest.raises(ValueError, match="unknown preset 'contrl', did you mean 'control'"):
        recipes(data_root, SMALL | {"preset": "contrl"})


FILE = """
benchmark = "mnist"
net = "lenet-norm"
epochs = 4
seed = [0, 1]
[[runs]]
objective = ["cross-entropy", "moon"]
set.quiet_epochs = 1
[[runs]]
objective = "cross-entropy"
rates = "moon"
vote = 0.25
"""


def test_a_file_says_all_of_it(data_root, tmp_path):
    path = tmp_path / "compare.toml"
    path.write_text(FILE)
    found = read_file(data_root, path)
    assert len(found) == 6
    assert [(r.objective, r.lr_start, r.vote_share, r.seed) for r in found][4] == ("cross-entropy", 0.12, 0.25, 0)
    names = labels(found)
    assert sorted(set(names.values())) == [
        "cross-entropy lr_start=0.1",
        "cross-entropy lr_start=0.12",
        "moon",
    ]


def test_trainings_that_have_names_are_called_by_them(data_root):
    def called(*grids):
        found = [recipe for axes in grids for recipe in recipes(data_root, SMALL | {"seed": [0, 1]} | axes)]
        return list(dict.fromkeys(labels(found).values()))

    quiet = {"set": {"quiet_epochs": 1}}
    trainings = {"preset": ["plain", "control", "without-vt"]} | quiet, {"objective": ["moon", "mixup"]} | quiet
    assert called(*trainings) == ["plain", "control", "without-vt", "moon", "mixup"]
    assert called({"preset": ["plain"]}) == ["cross-entropy"]
    assert called({"preset": ["control"]}) == ["control"]
    assert called({"preset": ["plain", "without-lm"], "epochs": 9}) == ["cross-entropy", "without-lm"]
    both = {"preset": ["plain", "control"], "sparsity": [0.8, 0.9]}
    assert called(both) == ["plain 80%", "plain 90%", "control 80%", "control 90%"]
    assert called({"preset": ["plain", "control"]}, {"objective": "cross-entropy", "lr": 0.3}) == [
        "cross-entropy lr_start=0.1",
        "cross-entropy lr_start=0.12",
        "cross-entropy lr_start=0.3",
    ]
    assert called({"objective": "moon", "set": {"quiet_epochs": 1, "final": [1, 2]}}) == [
        "moon final=1.0 quiet_epochs=1",
        "moon final=2.0 quiet_epochs=1",
    ]
    changes = [{"lr": 0.3}, {"weight_decay": [1e-3, 1e-4]}, {"lr": 0.3, "vote": 0.0}]
    assert called(*({"objective": "mixup", "vote": 0.2} | change for change in [{}, *changes])) == [
        "mixup",
        "mixup lr_start=0.3",
        "mixup weight_decay=0.001",
        "mixup weight_decay=0.0001",
        "mixup lr_start=0.3 vote_share=0.0",
    ]
    long, short = {"preset": "best", "epochs": 300}, {"objective": "moon-logitnorm", "epochs": 9}
    assert called(long) == ["best"]
    assert called(long, short) == ["best", "moon-logitnorm"]
    assert called(long, {"objective": "moon-logitnorm", "epochs": 300, "vote": 0.0}) == [
        "moon-logitnorm vote_share=0.2",
        "moon-logitnorm vote_share=0.0",
    ]
    several = {"set": {"quiet_epochs": 1, "final": 5}}
    assert called({"preset": "without-vt"} | several, {"objective": "moon"} | quiet) == [
        "moon final=5.0 quiet_epochs=1",
        "moon final=0.01 quiet_epochs=1",
    ]


def test_labels_are_of_one_method_each(data_root):
    (recipe,) = recipes(data_root, SMALL | {"epochs": 9})
    near = [replace(recipe, lr_start=0.1234567 + i * 1e-7) for i in range(2)]
    near += [replace(recipe, delta_t_steps=1_000_000 + i) for i in range(2)] + [replace(recipe, objective="mine")]
    assert len(set(labels(near).values())) == 5


def test_a_block_may_have_an_objective_in_place_of_a_preset(data_root, tmp_path):
    path = tmp_path / "compare.toml"
    path.write_text("benchmark = 'mnist'\npreset = 'control'\n[[runs]]\n[[runs]]\nobjective = 'moon'\n")
    assert [recipe.objective for recipe in read_file(data_root, path)] == ["cross-entropy", "moon"]
    path.write_text("benchmark = 'mnist'\nobjective = 'moon'\n[[runs]]\n[[runs]]\npreset = 'control'\n")
    assert [recipe.objective for recipe in read_file(data_root, path)] == ["moon", "cross-entropy"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("benchmrk = 'mnist'", "a grid has no 'benchmrk', did you mean 'benchmark'"),
        ("benchmark = 'mnst'", "unknown benchmark 'mnst', did you mean 'mnist'"),
        ("epochs = 3", "needs at least one benchmark"),
        ("benchmark = 'mnist'\nset = 3", "'set' must be a table"),
        ("benchmark = 'mnist'\nruns = 3", "must be blocks"),
        ("benchmark = ", "is no TOML"),
        ("benchmark = 'mnist'\n[[runs]]\nobjective = 'mooon'", r"block 1 of \[\[runs\]\]: unknown objective 'mooon'"),
        ("benchmark = 'mnist'\nepochs = 'many'", "'epochs' must be a whole number, not 'many'"),
        ("benchmark = 'mnist'\nobjective = 3", "'objective' must be a word, not 3"),
        ("benchmark = 'mnist'\npreset = ['plain', 3]", "'preset' must be a word, not 3"),
    ],
)
def test_a_typo_in_a_file_is_named(data_root, tmp_path, text, what):
    path = tmp_path / "compare.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=what):
        read_file(data_root, path)
    with pytest.raises(ValueError, match="cannot be read"):
        read_file(data_root, tmp_path / "nowhere.toml")


def test_labels_are_as_short_as_tells_methods_apart(data_root):
    one = recipes(data_root, SMALL | {"objective": "mixup", "seed": [0, 1]})
    assert set(labels(one).values()) == {"mixup"}
    several = recipes(data_root, SMALL | {"objective": "mixup", "topology": ["rigl", "set"], "sparsity": [0.5, 0.9]})
    assert set(labels(several).values()) == {"mixup rigl 50%", "mixup rigl 90%", "mixup set 50%", "mixup set 90%"}


def small(data_root, **axes) -> list[Recipe]:
    return recipes(data_root, SMALL | {"objective": "cross-entropy"} | axes)


def processes(data_root, places=2) -> Processes:
    return Processes(places, data_root, ["cpu"], threads=1, checkpoint_seconds=0)


def metrics(folder: Path) -> dict:
    found = {}
    for path in sorted(folder.glob("*/result.json")):
        result, scores = json.loads(path.read_text()), json.loads((path.parent / "scores.json").read_text())
        found[path.parent.name] = result["known"], result["model_sha256"], scores["detectors"]
    return found


def test_how_a_run_stands_is_read_from_its_folder(data_root, tmp_path):
    (recipe,) = small(data_root)
    made = Grid.plan(tmp_path, [recipe], ["msp"])
    (job,) = made.jobs
    assert job.state() is State.WAITING
    with locked(job.folder):
        assert job.state() is State.RUNNING
    assert job.state() is State.WAITING
    job.failure.write_text('{"message": "no"}')
    assert (job.state(), job.why()) == (State.FAILED, "no")
    made.forget_failures()
    (job.folder / "result.json").write_text("{}")
    assert job.state() is State.WAITING  # not scored yet
    (job.folder / "todo.json").unlink()
    assert job.state() is State.DONE
    assert (job.folder / "recipe.json").exists()


def test_runs_are_done_and_scored_once(data_root, tmp_path):
    planned = Grid.plan(tmp_path, small(data_root, seed=[0, 1]), ["msp", "unknown"])
    planned.run(processes(data_root))
    assert set(planned.states().values()) == {State.DONE}
    assert planned.seconds_left(2) == 0
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")}
    again = Grid.plan(tmp_path, small(data_root, seed=[0, 1]), ["msp", "unknown"])
    again.run(processes(data_root))
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.json")} == before
    # What is asked for while a run is still to be scored is added to it.
    for names in (["msp", "ebo"], ["msp", "knn"]):
        (job,) = Grid.plan(tmp_path, small(data_root, seed=[1]), names).jobs
    assert worker.todo_of(job.folder) == ["msp", "unknown", "ebo", "knn"]
    worker.work(job.folder, data_root)
    assert set(grid.scored(job.folder)[0]) == {"msp", "unknown", "ebo", "knn"}
    # A detector more is scored without training again; one that does not fit the model was left out.
    more = Grid.plan(tmp_path, small(data_root, seed=[0]), ["msp", "ebo", "unknown"])
    assert set(more.states().values()) == {State.WAITING}
    more.run(processes(data_root))
    scores = json.loads((more.jobs[0].folder / "scores.json").read_text())
    assert list(scores["detectors"]) == ["msp", "ebo"]
    assert list(scores["left_out"]) == ["unknown"]
    assert (more.jobs[0].folder / "result.json").stat().st_mtime_ns == before[more.jobs[0].folder / "result.json"]


def test_what_a_user_did_wrong_is_reported_and_not_tried_again(data_root, tmp_path):
    good, bad = *small(data_root), *small(data_root, lr=1e20)
    planned = Grid.plan(tmp_path, [good, bad], [])
    planned.run(processes(data_root))
    states = planned.states()
    assert (states[good.name], states[bad.name]) == (State.DONE, State.FAILED)
    job = next(job for job in planned.jobs if job.recipe == bad)
    assert "not finite" in job.why()
    assert job.tries == 0
    started = []

    class Watched(Processes):
        def start(self, folder):
            started.append(folder)
            return super().start(folder)

    Grid.plan(tmp_path, [good, bad], []).run(Watched(1, data_root, ["cpu"], 1))
    assert started == []


def test_what_the_machine_did_is_tried_again_but_not_for_ever(data_root, tmp_path):
    class Broken:
        places = 1
        started = 0

        def start(self, folder):
            self.started += 1
            return folder

        def ended(self, handle):
            return "the machine is on fire"

        def stop(self, handles):
            assert not handles

    workers = Broken()
    planned = Grid.plan(tmp_path, small(data_root), [], retries=3)
    planned.run(workers, poll=0)
    assert workers.started == 4
    assert planned.jobs[0].why() == "the machine is on fire"
    assert planned.jobs[0].state() is State.WAITING  # the next driver tries again


def test_a_driver_that_is_stopped_stops_its_workers(data_root, tmp_path):
    planned = Grid.plan(tmp_path, small(data_root, seed=[0, 1], epochs=500), [])

    def interrupt(grid):
        if all(list(job.folder.glob("checkpoints/0*")) for job in grid.jobs):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        planned.run(processes(data_root), interrupt)
    assert set(planned.states().values()) == {State.WAITING}  # nobody holds a lock any more
    assert all((job.folder / "checkpoints").exists() for job in planned.jobs)


DRIVER = """
import sys
from pathlib import Path
from moon.grid.grid import Grid, Processes
from moon.recipe.expand import read_file
root, out, file, places = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
Grid.plan(out, read_file(root, file), ["msp"], retries=100).run(Processes(places, root, ["cpu"], 1, 0))
"""


def workers_of(out: Path) -> list[int]:
    """The processes that hold run folders of the grid."""
    found = []
    for lock in out.glob("*/lock"):
        text = lock.read_text().strip()
        if text and grid.is_locked(lock.parent):
            found.append(int(text))
    return found


def test_killed_at_random_moments_every_run_is_done_once_with_the_same_metrics(data_root, tmp_path):
    # 12 runs; workers and drivers are killed while two drivers, which know nothing of each other, work on one grid.
    file = tmp_path / "compare.toml"
    file.write_text(
        'benchmark = "mnist"\nnet = "lenet-norm"\nepochs = 3\nbatch_size = 64\ndelta_t = 2\n'
        'objective = ["cross-entropy", "moon"]\nset.quiet_epochs = 1\nsparsity = [0.8, 0.9]\nseed = [0, 1, 2]\n'
    )
    environment = os.environ | {"OMP_NUM_THREADS": "1"}

    def drive(out, places=2):
        command = [sys.executable, "-c", DRIVER, str(data_root), str(out), str(file), str(places)]
        return subprocess.Popen(command, env=environment)

    chance, out = random.Random(0), tmp_path / "killed"
    drivers, kills = [drive(out), drive(out, 1)], 0
    deadline = time.monotonic() + 400
    while any(driver.poll() is None for driver in drivers) or kills < 8:
        assert time.monotonic() < deadline
        time.sleep(chance.uniform(0.3, 2.5))
        for index, driver in enumerate(drivers):
            if driver.poll() is not None and not _all_done(out):
                drivers[index] = drive(out, 1)
        if kills < 8:
            running = workers_of(out)
            if chance.random() < 0.3:
                driver = chance.choice(drivers)
                driver.kill()
                driver.wait()
                kills += 1
            elif running:
                with suppress(ProcessLookupError):  # it may have ended by itself meanwhile
                    os.kill(chance.choice(running), signal.SIGKILL)
                kills += 1
        elif _all_done(out):
            break
    for driver in drivers:
        driver.wait(120)
    undisturbed = drive(tmp_path / "whole")
    assert undisturbed.wait(300) == 0
    found, expected = metrics(out), metrics(tmp_path / "whole")
    assert len(expected) == 12
    assert found == expected
    for folder in out.iterdir():
        epochs = [json.loads(line)["epoch"] for line in (folder / "log.jsonl").read_text().splitlines()]
        assert epochs == [0, 1, 2], folder  # each epoch once


def _all_done(out: Path) -> bool:
    folders = list(out.iterdir()) if out.exists() else []
    return len(folders) == 12 and all(grid.is_done(folder) for folder in folders)


def test_the_job_of_a_run_knows_how_far_it_is(data_root, tmp_path):
    (recipe,) = small(data_root, epochs=7)
    job = Job(recipe, tmp_path)
    assert (job.epochs_done(), job.seconds()) == (0, 0)
    (tmp_path / "log.jsonl").write_text('{"epoch": 0, "seconds": 1.5}\n{"epoch": 1, "seconds": 2.5}\n')
    assert (job.epochs_done(), job.seconds()) == (2, 4)
    planned = Grid(tmp_path, [job])
    assert planned.seconds_left(places=1) == pytest.approx(5 * 2)
