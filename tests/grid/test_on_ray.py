"""A grid on a local Ray cluster; the run of a killed worker resumes from its checkpoint in another worker."""

import json
import logging
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from moon.grid import Grid, on_ray, worker
from moon.grid.on_ray import RayWorkers
from moon.recipe.expand import expand
from moon.training import is_locked

DRIVER = """
import sys
from pathlib import Path
from moon.grid import Grid
from moon.recipe.expand import expand
from moon.grid.on_ray import RayWorkers
root, out, seeds = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
axes = {"benchmark": "mnist", "net": "lenet-norm", "objective": "cross-entropy", "epochs": 30, "batch_size": 64}
planned = Grid.plan(out, expand(root, axes | {"seed": list(range(seeds))}), ["msp"])
planned.run(RayWorkers("local", root, checkpoint_seconds=0))
print([str(state) for state in planned.states().values()], [job.tries for job in planned.jobs])
"""


@pytest.mark.slow
def test_the_run_of_a_killed_worker_resumes_in_another(data_root, tmp_path):
    pytest.importorskip("ray")
    out = tmp_path / "runs"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "RAY_TMPDIR": "/tmp/ray-moon-test"}
    command = [sys.executable, "-W", "ignore", "-c", DRIVER, str(data_root), str(out), "2"]
    driver = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    killed = False
    deadline = time.monotonic() + 1800  # a guard against hanging
    while driver.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
        for checkpoint in [] if killed else list(out.glob("*/checkpoints/0*")):
            lock = checkpoint.parents[1] / "lock"
            if is_locked(lock.parent) and int(checkpoint.name) < 25:
                os.kill(int(lock.read_text()), signal.SIGKILL)
                killed = True
                break
    assert killed
    printed, _ = driver.communicate(timeout=1200)
    assert driver.returncode == 0
    assert "['done', 'done']" in printed
    assert printed.strip().endswith(("[1, 0]", "[0, 1]")), printed  # one run was retried
    for log in out.glob("*/log.jsonl"):
        assert len(log.read_text().splitlines()) == 30


def test_without_ray_the_message_names_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install ray$"):
        RayWorkers("local", Path())


@pytest.mark.parametrize(("error", "reason"), [(ConnectionError("refused\nlog"), "refused"), (RuntimeError(), "Runti")])
def test_a_cluster_that_cannot_be_reached_is_named(monkeypatch, error, reason):
    def init(**_):
        raise error

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
    with pytest.raises(
        ValueError, match=rf"^no Ray cluster at 'host:1' \({reason}.*; start one with: ray start --head$"
    ):
        RayWorkers("host:1", Path())


def test_a_task_scores_the_sets_that_the_grid_names(data_root, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_gpu_ids=list))
    monkeypatch.setattr(worker, "log_to_stderr", lambda: None)
    axes = {"benchmark": "mnist", "net": "lenet-norm", "objective": "cross-entropy", "epochs": 1, "batch_size": 64}
    (job,) = Grid.plan(tmp_path, expand(data_root, axes), ["msp"], near=["dtd"], far=["notmnist"]).jobs
    on_ray._task(str(job.folder), str(data_root), torch.get_num_threads(), 30.0, True)
    scores = json.loads((job.folder / "scores.json").read_text())
    assert (scores["near"], scores["far"]) == (["dtd"], ["notmnist"])


def test_warnings_of_a_run_reach_the_driver(data_root, tmp_path, monkeypatch):
    """On a stand-in for Ray, whose tasks are executed when they are asked for."""
    ray = SimpleNamespace(
        is_initialized=lambda: True, remote=lambda **_: lambda task: SimpleNamespace(remote=partial(partial, task)),
        wait=lambda handles, timeout: (handles, []), get=lambda handle: handle(), get_gpu_ids=list,
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(worker, "log_to_stderr", lambda: None)
    monkeypatch.setattr(worker, "work", lambda *_: logging.getLogger("moon.run.learning").warning("learned\nnothing"))
    workers = RayWorkers("local", data_root)
    for name in ("a", "b"):  # executed by the same process
        handle = workers.start(tmp_path / name)
        assert workers.warnings(handle) == []
        assert workers.ended(handle) == ""
        assert workers.warnings(handle) == ["learned nothing"]
        assert workers.warnings(handle) == []
