"""Progress of a run: lines without a terminal, bars that fit into any terminal, and the number of threads."""

import io
import re

import pytest
import torch
from rich.console import Console

from moon.cli import screen
from moon.cli.screen import tracked, train_on_screen
from moon.recipe import make_recipe
from moon.run import machine
from moon.run.images import BenchmarkImages

RECORD = {"epoch": 2, "loss": 0.45678, "val_accuracy": 0.9812, "density": 0.05, "w": 0.314, "seconds": 1.52}
RECIPE = make_recipe("digits", "moon", epochs=15)


class Started:
    """What `on_start` sees of a training."""

    batches, next_epoch, device = range(79), 0, torch.device("cpu")


@pytest.fixture
def run(data_root, tmp_path):
    """A function that trains a small run with its progress, and returns its result."""
    images = BenchmarkImages.open(data_root, "mnist")

    def train(name="run"):
        settings = {"net": "lenet-norm", "topology": "static", "batch_size": 128, "epochs": 3}
        recipe = make_recipe("mnist", "moon", root=data_root, **settings)
        return train_on_screen(recipe, tmp_path / name, images, torch.device("cpu"), checkpoint_seconds=0)

    return train


@pytest.fixture
def threads(monkeypatch):
    """A function that sets the number of threads that torch uses by default, without OMP_NUM_THREADS."""
    before = torch.get_num_threads()
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(machine, "cores", lambda: 2)
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_without_a_terminal_there_is_a_line_per_epoch(run, capsys):
    run()
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"training mnist-static95-moon-s0-\w+: 3 epochs of 2 steps on cpu", lines[0])
    epochs = [line for line in lines if line.startswith("epoch")]
    number = r"\d+\.\d"
    for i, line in enumerate(epochs, start=1):
        assert re.fullmatch(
            rf"epoch {i}/3: loss {number}{{4}}, acc {number}%, sparse 95\.\d%, w {number}\d, {number} s, "
            r"\d:\d\d:\d\d left",
            line,
        ), line
    assert len(epochs) == 3
    assert not [line for line in lines if "\x1b" in line or "\r" in line or "━" in line]


def test_a_line_is_written_at_once_and_estimates_the_time_left(monkeypatch):
    class Stream(io.StringIO):
        flushed = ""

        def flush(self):
            self.flushed = self.getvalue()

    stream = Stream()
    monkeypatch.setattr("sys.stdout", stream)
    callbacks = screen._lines(RECIPE)
    callbacks["on_start"](Started)
    callbacks["on_epoch"](RECORD | {"elapsed_seconds": 6.0})
    last = "epoch 3/15: loss 0.4568, acc 98.1%, sparse 95.0%, w 0.31, 1.5 s, 0:00:24 left\n"
    assert stream.flushed == stream.getvalue()
    assert stream.flushed.endswith(last)

    class Resumed(Started):
        next_epoch = 2

    callbacks["on_start"](Resumed)
    callbacks["on_epoch"](RECORD | {"elapsed_seconds": 6.0})  # one epoch took six seconds
    assert stream.flushed.endswith("0:01:12 left\n")


def frame(monkeypatch, width, encoding):
    """The last frame of the bar in a terminal of this width and encoding."""
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = Console(force_terminal=True, width=width, file=file, color_system=None, legacy_windows=False)
    monkeypatch.setattr(screen, "get_console", lambda: console)
    with screen._bar(RECIPE) as callbacks:
        callbacks["on_start"](Started)
        callbacks["on_step"](2, 40, lambda: 0.4567)
        callbacks["on_epoch"](RECORD)
    file.flush()
    return file.buffer.getvalue().decode(encoding).rpartition("\x1b[2K")[2]


def test_a_bar_is_one_line_in_a_usual_terminal(monkeypatch):
    assert "loss 0.46 acc 98.1% sparse 95.0% w 0.31 00:00" in frame(monkeypatch, 80, "utf-8")


def test_without_a_terminal_nothing_is_tracked(capsys):
    assert list(tracked([1, 2], "reading")) == [1, 2]
    assert capsys.readouterr().out == ""


@pytest.fixture
def pretended_threads(monkeypatch, threads):
    """A function that sets the number of threads that torch reports; real threads would wait for a busy machine."""
    number = [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: number[0])
    monkeypatch.setattr(torch, "set_num_threads", lambda new: number.__setitem__(0, new))
    return lambda new: torch.set_num_threads(new)


class Stopped(Exception):
    pass


@pytest.fixture
def stopped_after_one_epoch(monkeypatch, run):
    """A function that stops a run in its second epoch."""

    def train(name):
        on_epoch = screen._state

        def stop(record, *separator):
            if record["epoch"] == 1:
                raise Stopped
            return on_epoch(record, *separator)

        with monkeypatch.context() as patch:
            patch.setattr(screen, "_state", stop)
            with pytest.raises(Stopped):
                run(name)

    return train


def test_a_small_network_trains_in_one_thread_and_resumes_exactly(run, threads, stopped_after_one_epoch, tmp_path):
    threads(1)
    whole = run("whole")
    threads(2)
    stopped_after_one_epoch("resumed")
    threads(1)
    resumed = run("resumed")
    assert resumed["hardware"].endswith("1 thread")
    assert resumed["threads"] == 1
    assert resumed["model_sha256"] == whole["model_sha256"]
    assert resumed["exact"]


def test_the_users_number_of_threads_is_used_and_kept(
    run, pretended_threads, stopped_after_one_epoch, monkeypatch, tmp_path
):
    pretended_threads(2)
    with monkeypatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "2")
        stopped_after_one_epoch("run")
    pretended_threads(1)
    result = run("run")  # without OMP_NUM_THREADS
    assert result["hardware"].endswith("2 threads")
    assert result["exact"]


def test_a_run_resumes_with_its_threads_whatever_the_user_sets(
    run, pretended_threads, stopped_after_one_epoch, monkeypatch, caplog
):
    pretended_threads(2)
    stopped_after_one_epoch("run")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    result = run("run")
    assert result["hardware"].endswith("1 thread")
    assert result["exact"]
