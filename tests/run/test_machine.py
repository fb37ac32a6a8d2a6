"""The machine of a run: how many CPU threads train it, and devices that cannot be used."""

import logging

import pytest
import torch
from torch import nn

from moon.data import BENCHMARKS
from moon.recipe import Recipe, make_recipe, register, unregister
from moon.run.folder import load, load_result
from moon.run.machine import chosen_threads, conditions, restore_conditions, threads_for, usable_device
from moon.run.train import train_run
from moon.score.checkpoint import score_checkpoint
from moon.score.score import score_run

DIGITS, CIFAR = BENCHMARKS["digits"], BENCHMARKS["cifar10"]
SMALL = make_recipe("digits", "cross-entropy", batch_size=64, epochs=10)


def test_only_a_small_step_gets_one_thread():
    def threads(benchmark, **settings):
        return threads_for(make_recipe(benchmark, "moon", epochs=10, **settings), benchmark, most=8)

    assert threads(DIGITS, batch_size=64) == 1
    assert threads(DIGITS, batch_size=1024) == 8
    assert threads(CIFAR, net="lenet-norm", batch_size=64) == 1
    assert threads(CIFAR, batch_size=1) == 8  # ResNet-18


def test_a_network_that_cannot_be_counted_is_trained_to_the_end_with_one_thread_and_says_so(images, tmp_path, caplog):
    class Recurrent(nn.Module):
        def __init__(self, num_classes, in_channels):
            super().__init__()
            self.lstm, self.fc = nn.LSTM(28, 8, batch_first=True), nn.Linear(8, num_classes)

        def forward(self, x):
            return self.fc(self.lstm(x.mean(1))[0].mean(1))

    caplog.set_level(logging.INFO)
    register("net", "recurrent", Recurrent)
    try:
        recipe = make_recipe(images.benchmark, "cross-entropy", net="recurrent", epochs=1, topology="dense")
        assert threads_for(recipe, images.benchmark, most=8) == 1
        assert train_run(recipe, tmp_path, images)["flops"] is None
    finally:
        unregister("net", "recurrent")
    reason = "(['lstm'] is recurrent, which is not counted)"
    assert f"recurrent is trained with one CPU thread, because its FLOPs are not counted {reason}" in caplog.text
    assert "the FLOPs of recurrent are not counted, null in result.json: ['lstm'] is recurrent" in caplog.text


def test_a_resumed_run_gets_its_threads_back(tmp_path, torch_threads, caplog):
    caplog.set_level(logging.INFO)
    torch_threads(1)
    before = conditions("cpu", 1)
    torch_threads(2)
    assert restore_conditions(tmp_path, before, "cpu", 1, exact=True) == []
    assert torch.get_num_threads() == 1
    assert "resumed with 1 CPU thread(s), as it was started" in caplog.text


def test_an_inexact_run_uses_the_new_number_of_threads_and_says_so(tmp_path, torch_threads, caplog):
    torch_threads(1)
    before = conditions("cpu", 1)
    torch_threads(2)
    assert restore_conditions(tmp_path, before, "cpu", 1, exact=False) == ["resumed: threads was 1, now 2"]
    assert torch.get_num_threads() == 2
    assert "will differ in its last bits" in caplog.text


def test_another_number_of_processes_is_an_error(tmp_path):
    before = conditions("cpu", 2)
    with pytest.raises(ValueError, match=r"cannot be resumed exactly \(ranks was 2, now 1\)"):
        restore_conditions(tmp_path, before, "cpu", 1, exact=True)
    assert restore_conditions(tmp_path, before, "cpu", 1, exact=False) == ["resumed: ranks was 2, now 1"]


@pytest.mark.parametrize("name", ["hardware", "torch"])
def test_other_hardware_or_software_is_inexact(tmp_path, name, caplog):
    before = conditions("cpu", 1) | {name: "another"}
    (reason,) = restore_conditions(tmp_path, before, "cpu", 1, exact=True)
    assert reason.startswith(f"resumed: {name} was another, now ")
    assert "will differ in its last bits" in caplog.text


def test_threads_are_restored(torch_threads):
    torch_threads(2)
    with chosen_threads(SMALL, DIGITS, "cpu"):
        assert torch.get_num_threads() == 1
    with chosen_threads(SMALL, DIGITS, "cuda"):
        assert torch.get_num_threads() == 2
    assert torch.get_num_threads() == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_cannot_be_used_is_one_clear_error_before_anything_is_written(images, trained_runs, tmp_path):
    run = trained_runs(epochs=6, options={"quiet_epochs": 1})
    recipe = Recipe.load(run / "recipe.json")
    for device in ("cuda", "cuda:3", torch.device("cuda")):
        expected = rf"^device '{device}' cannot be used \(PyTorch (.* without CUDA|finds no GPU)\); choose another"
        with pytest.raises(ValueError, match=expected) as raised:
            train_run(recipe, tmp_path / "run", images, device=device)
        assert raised.value.__suppress_context__  # one traceback
        assert train_run(recipe, run, images, device=device) == load_result(run)  # finished: no device is needed
        with pytest.raises(ValueError, match=expected):
            load(run, device)
        with pytest.raises(ValueError, match=expected):
            score_run(run, images, ["msp"], device=device, out=tmp_path / "scores")
        with pytest.raises(ValueError, match=expected):
            score_checkpoint(
                run / "model.safetensors", "lenet-norm", images, ["msp"], device=device, out=tmp_path / "scores"
            )
    with pytest.raises(ValueError, match="device 'hpu' cannot be used"):  # of a package that is not installed
        usable_device("hpu")
    with pytest.raises(ValueError, match="there is no device 'gpu'; choose cpu, cuda, or cuda:N for one of several"):
        train_run(recipe, tmp_path / "run", images, device="gpu")
    assert not list(tmp_path.rglob("*.json"))
