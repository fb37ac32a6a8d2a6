"""Worker processes: their threads, and the warnings that they pass on."""

import json
import logging
import os
import subprocess
from functools import partial
from types import SimpleNamespace

import numpy as np
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


@pytest.fixture
def pipe():
    """A process that writes what the test writes, and the end of the pipe for it."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stdout, os.fdopen(write, "wb", buffering=0) as end:
        yield processes._Process(SimpleNamespace(stdout=stdout, poll=lambda: None), "cpu"), end


def test_warnings_come_before_the_answer_and_are_taken_once(pipe, tmp_path):
    process, end = pipe
    workers = Processes(1, tmp_path, ["cpu"])
    end.write(b"nothing lear")
    assert (workers.ended(process), workers.warnings(process)) == (None, [])
    end.write(b"ned\nand more\n")
    assert (workers.ended(process), workers.warnings(process)) == (None, ["nothing learned", "and more"])
    assert (workers.ended(process), workers.warnings(process)) == (None, [])
    end.write(b"at last\n\n")
    assert (workers.ended(process), workers.warnings(process)) == ("", ["at last"])


def test_a_process_that_has_ended_has_not_answered(pipe):
    process, end = pipe
    end.write(b"nothing learned\n")
    end.close()
    assert not process.answered()
    assert process.warnings == ["nothing learned"]


def test_a_warning_is_one_line_and_is_not_lost_without_a_driver(pipe, capsys):
    process, end = pipe
    handler = worker.Warnings(partial(worker._tell, end.fileno()))
    record = logging.makeLogRecord({"msg": "nothing\nlearned: %d", "args": (3,), "levelno": logging.WARNING})
    handler.handle(record)
    assert not process.answered()
    assert process.warnings == ["nothing learned: 3"]
    process.popen.stdout.close()
    handler.handle(record)  # worker.log has it
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_run_that_learns_nothing_is_known_to_the_grid(data_root, tmp_path):
    images, labels = np.zeros((60, 28, 28, 1), np.uint8), np.arange(60) % 10  # every network has 10% of these right
    np.savez(data_root / "mnist" / "val.npz", images=images, labels=labels)
    settings = {"net": "lenet-norm", "batch_size": 64, "topology": "dense", "epochs": 6}
    grid = Grid.plan(tmp_path / "grid", [make_recipe("mnist", "cross-entropy", root=data_root, **settings)])
    grid.run(Processes(1, data_root, ["cpu"], threads=1))
    (text,) = grid.jobs[0].warnings
    assert text.startswith("after 5 of 6 epochs the network has learned nothing yet: ")
    assert text in (grid.jobs[0].folder / "worker.log").read_text()
