"""How many CPU threads train a run."""

import logging

import pytest
import torch
from torch import nn

from moon.data import BENCHMARKS
from moon.recipe import make_recipe, register, unregister
from moon.run import machine
from moon.run.machine import chosen_threads, record_threads, threads_for, threads_of

DIGITS, CIFAR = BENCHMARKS["digits"], BENCHMARKS["cifar10"]
SMALL = make_recipe("digits", "cross-entropy", batch_size=64, epochs=10)


@pytest.fixture
def torch_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_only_a_small_step_gets_one_thread(tmp_path):
    def threads(benchmark, **settings):
        return threads_for(make_recipe(benchmark, "moon", epochs=10, **settings), benchmark, tmp_path, most=8)

    assert threads(DIGITS, batch_size=64) == 1
    assert threads(DIGITS, batch_size=1024) == 8
    assert threads(CIFAR, net="lenet-norm", batch_size=64) == 1
    assert threads(CIFAR, batch_size=1) == 8  # ResNet-18


def test_a_resumed_run_keeps_its_threads(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "cores", lambda: 4)
    (tmp_path / "threads").write_text("3\n")
    assert threads_for(SMALL, DIGITS, tmp_path, most=2) == 3
    (tmp_path / "threads").write_text("16\n")  # more than this machine has
    assert threads_for(SMALL, DIGITS, tmp_path, most=2) == 1


def test_a_run_that_an_earlier_version_started_keeps_its_threads(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    assert threads_for(SMALL, DIGITS, tmp_path, most=2) == 2


def test_a_network_that_cannot_be_counted_gets_all_threads(tmp_path):
    class Attention(nn.Module):
        def __init__(self, num_classes, in_channels):
            super().__init__()
            self.attention, self.fc = nn.MultiheadAttention(28, 1), nn.Linear(28, num_classes)

        def forward(self, x):
            x = x.mean(1)
            return self.fc(self.attention(x, x, x)[0].mean(1))

    register("net", "attention", Attention)
    try:
        recipe = make_recipe("digits", "cross-entropy", net="attention", epochs=10)
        assert threads_for(recipe, DIGITS, tmp_path, most=8) == 8
    finally:
        unregister("net", "attention")


def test_the_first_number_of_threads_is_recorded_and_another_one_is_reported(tmp_path, torch_threads, caplog):
    caplog.set_level(logging.WARNING)
    for number in (1, 2):  # without a checkpoint training starts again
        torch_threads(number)
        record_threads(tmp_path, "cpu")
        assert threads_of(tmp_path) == number
    (tmp_path / "checkpoints" / "000001").mkdir(parents=True)
    record_threads(tmp_path, "cpu")
    assert not (tmp_path / "inexact").exists()
    torch_threads(1)
    record_threads(tmp_path, "cpu")
    assert threads_of(tmp_path) == 2
    assert (tmp_path / "inexact").exists()
    assert "the number of CPU threads was 2 and is now 1" in caplog.text


def test_nothing_is_recorded_on_a_gpu(tmp_path):
    record_threads(tmp_path, "cuda")
    assert list(tmp_path.iterdir()) == []


def test_threads_are_restored(tmp_path, torch_threads):
    torch_threads(2)
    with chosen_threads(SMALL, DIGITS, tmp_path, "cpu"):
        assert torch.get_num_threads() == 1
    with chosen_threads(SMALL, DIGITS, tmp_path, "cuda"):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2
