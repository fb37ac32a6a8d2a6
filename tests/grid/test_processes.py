"""Worker processes: their threads."""

import json
import subprocess

import pytest
import torch

from moon.grid import Grid, Processes, processes, worker
from moon.recipe import make_recipe


@pytest.fixture
def started(monkeypatch, tmp_path):
    """A function that starts a process of `Processes(...)` and returns its command and OMP_NUM_THREADS."""
    found = {}

    class Popen:
        stdin = subprocess.PIPE

        def __init__(self, command, env, **_):
            found.update(command=command, threads=env["OMP_NUM_THREADS"])

    monkeypatch.setattr(subprocess, "Popen", Popen)
    monkeypatch.setattr(processes, "cores", lambda: 8)
    monkeypatch.setattr(processes._Process, "send", lambda *_: None)

    def start(places, threads):
        Processes(places, tmp_path, ["cpu"], threads).start(tmp_path)
        return "--choose-threads" in found["command"], found["threads"]

    return start


def test_threads_that_are_given_are_used(started):
    assert started(places=2, threads=3) == (False, "3")


def test_otherwise_a_process_has_its_share_of_the_cores_and_chooses(started):
    assert started(places=3, threads=None) == (True, "2")
    assert started(places=16, threads=None) == (True, "1")


@pytest.mark.parametrize(("choose", "words"), [(True, "1 thread"), (False, "2 threads")])
def test_a_worker_chooses_threads_only_if_told_to(data_root, tmp_path, monkeypatch, choose, words):
    recipe = make_recipe("mnist", "cross-entropy", root=data_root, net="lenet-norm", epochs=1, batch_size=64)
    (job,) = Grid.plan(tmp_path / "grid", [recipe]).jobs
    number = [2]  # pretended, because real threads would wait for a busy machine
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda new: number.__setitem__(0, new))
    worker.work(job.folder, data_root, choose_threads=choose)
    assert number == [2]
    assert job.threads() == int(words[0])
    assert json.loads((job.folder / "result.json").read_text())["hardware"].endswith(f", {words}")
