"""`moon bench predict`. What it measures is replaced where a test needs particular times."""

import json
import sys

import pytest
import torch

from moon import timing
from moon.run.machine import threads_kept

pytest.importorskip("moon_runtime")


def record(**more):
    def row(threads, name, milliseconds, **rest):
        return {
            "batch": 1,
            "threads": threads,
            "contender": name,
            "milliseconds": milliseconds,
            "difference": 0.0,
            **rest,
        }

    rows = [
        row(1, "moon-runtime", 2.5, speedup=3.21, cpu_speedup=3.5, difference=2e-6),
        row(1, "onnxruntime", 8.0, speedup=1.0, cpu_speedup=1.0),
        row(2, "moon-runtime", 1.4, speedup=3.0, over_one_thread=1.79, difference=2e-6),
        row(2, "onnxruntime", 1234.5, speedup=1.0, over_one_thread=1.9),
    ]
    return {
        "net": "resnet18", "input": [3, 32, 32], "classes": 10, "sparsity": 0.95, "limit": 39.72,
        "instructions": "avx512", "bytes": {"dense": 44_700_000, "float32": 2_830_000, "float16": 1_700_000},
        "first_answer": {"seconds": 0.21, "cpu_seconds": 0.19, "bytes": 35e6}, "rounds": 3, "base": "onnxruntime",
        "not_compared": {"openvino": "openvino is not installed (pip install openvino)"}, "times": rows, **more,
    }  # fmt: skip


@pytest.mark.slow
def test_a_network_is_timed_and_the_results_are_written(moon, tmp_path):
    small = ("--sparsity", "0.9", "--batch", "1", "2", "--threads", "1", "--rounds", "1", "--out", "kept/bench.json")
    code, out, err = moon("bench", "predict", "--net", "lenet", *small)
    assert (code, err) == (0, "")
    assert "A call of lenet, 1x28x28" in out
    written = json.loads((tmp_path / "kept" / "bench.json").read_text())
    assert {"date", "hardware", "load", "software", "predict"} <= written.keys()
    assert {"torch", "moon-runtime"} <= written["software"].keys()
    (found,) = written["predict"]
    assert (found["net"], found["sparsity"], found["rounds"]) == ("lenet", 0.9, 1)


def test_the_tables_show_times_ratios_sizes_and_what_is_missing(moon, monkeypatch):
    monkeypatch.setattr(timing, "time_predictions", lambda *_, **__: record())
    code, out, _ = moon("bench", "predict", "--sparsity", "0.95", "--threads", "1")
    assert code == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "0.95 1 1 2.50 (3.21x) 8.00 3.50x 39.7x 2e-06" in lines
    assert "0.95 1 2 1.40 (3.00x) 1234 1.79x 39.7x 2e-06" in lines
    assert "0.95 1.70 2.83 44.70 0.21 0.19 35" in lines
    assert "not compared: openvino is not installed (pip install openvino)" in lines
    assert "the time of onnxruntime divided by it, the median over 3 rounds" in out


def test_each_network_and_sparsity_is_measured_with_all_settings(moon, monkeypatch):
    calls = []

    def measure(net, benchmark, sparsity, **settings):
        del settings["track"]
        calls.append((net, benchmark.size, sparsity, settings))
        return record(net=net, sparsity=sparsity)

    monkeypatch.setattr(timing, "time_predictions", measure)
    settings = ("--batch", "1", "8", "--threads", "1", "--precision", "float32", "float16", "--rounds", "5")
    moon("bench", "predict", "--net", "resnet18", "mobilenet_v2", "--sparsity", "0.9", "0.99", *settings)
    given = {"batches": [1, 8], "threads": [1], "precisions": ["float32", "float16"], "rounds": 5}
    expected = [(net, size, s, given) for net, size in (("resnet18", 32), ("mobilenet_v2", 224)) for s in (0.9, 0.99)]
    assert calls == expected
    calls.clear()
    moon("bench", "predict", "--net", "moon.nets:resnet18", "--benchmark", "mnist", "--sparsity", "0.9")
    assert calls[0][:2] == ("moon.nets:resnet18", 28)


@pytest.mark.parametrize(("given", "expected"), [(None, [1, 2]), ("2", [2, 2])])
def test_steps_are_timed_with_the_threads_of_a_training(moon, monkeypatch, given, expected):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    threads = []

    def time_steps(*_, **__):
        threads.append(torch.get_num_threads())
        raise ValueError("enough")

    monkeypatch.setattr("moon.timing.time_steps", time_steps)
    with threads_kept():
        torch.set_num_threads(2)
        for net in ("lenet-norm", "resnet18"):
            moon("bench", "train", "--benchmark", "digits", "--net", net, "--device", "cpu")
    assert threads == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("predict", "--net", "resnet81"), "unknown net 'resnet81' (did you mean 'resnet8'?)"),
        (("predict", "--threads", "4096"), "4096 threads are more than the"),
        (("predict", "--sparsity", "95"), "must be above 0 and below 1, not 95"),
        (("predict", "--precision", "float8"), "unknown value 'float8' of --precision"),
        (("predict", "--steps", "3"), "moon bench predict: unknown option '--steps'"),
        (("score", "--steps", "3"), "moon bench score: unknown option '--steps'"),  # which it would not use
        (("train", "--kernels", "--device", "cpu"), "--kernels needs a GPU, where steps are captured"),
        ((), "moon bench: the following arguments are required: ACTION"),
    ],
)
def test_errors_are_one_line(moon, arguments, message):
    code, _, err = moon("bench", *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1


def test_without_the_runtime_a_line_says_how_to_install_it(moon, monkeypatch):
    monkeypatch.setitem(sys.modules, "moon_runtime", None)
    code, _, err = moon("bench", "predict")
    assert code == 2
    assert err.startswith("moon bench: moon-runtime is not installed (pip install moon-runtime")
