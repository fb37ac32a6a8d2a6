"""Answers on a CPU, timed. No test depends on how long something takes."""

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from moon import timing
from moon.data import BENCHMARKS
from moon.timing import predict
from moon.timing.mobilenet import mobilenet_v2

pytest.importorskip("moon_runtime")
ROOT = Path(__file__).parents[2]
IMAGES = np.zeros((1, 1, 2, 2), np.float32)


@pytest.fixture
def no_processes(monkeypatch):
    monkeypatch.setattr(predict, "time_first_answer", lambda path: {})


@pytest.fixture(scope="module")
def record():
    settings = {"batches": [1, 2], "threads": [1], "rounds": 2}
    return timing.time_predictions("lenet-norm", BENCHMARKS["digits"], 0.9, **settings)


def test_every_program_computes_the_same_logits(record):
    assert {row["batch"] for row in record["times"]} == {1, 2}
    names = [row["contender"] for row in record["times"] if row["batch"] == 1]
    assert names[0] == "moon-runtime"
    assert names[-1] == "torch"
    assert set(names).isdisjoint(record["not_compared"])
    for row in record["times"]:
        assert row["threads"] == 1
        assert row["difference"] < (1e-5 if "bfloat16" not in row["contender"] else 0.1)
        assert row["largest_logit"] > 0.01
        assert row["milliseconds"] > 0
        assert (row["speedup"] == 1) == (row["contender"] == record["base"])


def test_a_record_has_the_limit_and_the_sizes_of_files(record):
    assert record["input"] == [1, 28, 28]
    assert 1 < record["limit"] < 10  # ERK keeps more of the layers that are used often
    dense, float32, float16 = (record["bytes"][name] for name in ("dense", "float32", "float16"))
    assert dense > float32 > float16 > dense / 40
    assert json.loads(json.dumps(record)) == record


def test_a_new_process_answers_without_torch(record):
    assert 10e6 < record["first_answer"]["bytes"] < 100e6  # this process has more
    assert record["first_answer"]["seconds"] > 0
    assert "torch" not in timing.fresh._PROGRAM


def test_the_limit_of_resnet18_is_the_one_of_erk():
    assert predict._sparse_network("resnet18", BENCHMARKS["cifar10"], 0.95)[1] == pytest.approx(8.0, abs=0.05)


def test_values_have_the_scale_of_a_trained_network():
    model, _ = predict._sparse_network("resnet18", BENCHMARKS["cifar10"], 0.99)
    seen = []
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(lambda _, __, output: seen.append(float(output.std())))
    assert not model.training
    with torch.no_grad():
        model(torch.randn(8, 3, 32, 32, generator=torch.Generator().manual_seed(1)))
    assert len(seen) == 20
    assert all(0.5 < value < 2 for value in seen)


def test_contenders_take_turns_and_short_calls_are_repeated(monkeypatch):
    now, log = 0.0, []

    def contender(name, seconds):
        def compute(images):
            nonlocal now
            now += seconds
            log.append(name)
            return images

        return compute

    monkeypatch.setattr(time, "perf_counter", lambda: now)
    monkeypatch.setattr(time, "thread_time", lambda: now / 2)
    times = predict.time_in_turn({("a", 1): contender("a", 0.02), ("b", 1): contender("b", 4.0)}, IMAGES, rounds=2)
    assert "".join(log) == "aabb" + 2 * "aaab"  # a turn of a: one call that does not count, and two of 0.02 s
    np.testing.assert_allclose(times["a", 1], [[0.02, 0.01]] * 2)
    np.testing.assert_allclose(times["b", 1], [[4.0, 2.0]] * 2)


def test_ratios_are_medians_over_rounds_of_times_in_the_same_round(monkeypatch):
    found = {
        ("moon-runtime", 1): np.array([[1.0, 1.0], [2.0, 1.0], [4.0, 1.0]]),
        ("moon-runtime", 2): np.array([[0.5, 1.0], [0.5, 1.0], [4.0, 1.0]]),
        ("torch", 1): np.array([[2.0, 3.0], [6.0, 3.0], [20.0, 4.0]]),
        ("torch", 2): np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]),
    }
    monkeypatch.setattr(predict, "time_in_turn", lambda *_: found)
    computed = {key: lambda images, key=key: images + (0.25 if key[0] != "torch" else 0) for key in found}
    rows = predict._compare(computed, IMAGES, "torch", 3, lambda items, _: items, "")
    one, two = rows[:2]
    assert (one["milliseconds"], one["cpu_milliseconds"]) == (2000, 1000)
    assert (one["speedup_low"], one["speedup"], one["speedup_high"]) == (2.5, 3, 4)  # of 2, 3 and 5
    assert one["cpu_speedup"] == 3
    assert two["over_one_thread"] == 2  # of 2, 4 and 1
    assert "cpu_speedup" not in two  # the calling thread does not see the others
    assert [row["difference"] for row in rows] == [0.25, 0.25, 0, 0]


def test_the_number_of_threads_of_torch_is_restored(monkeypatch, no_processes):
    monkeypatch.setattr(predict, "cores", lambda: 2)
    before = torch.get_num_threads()
    found = timing.time_predictions("lenet", BENCHMARKS["mnist"], 0.9, batches=[1], threads=[1, 2], rounds=1)
    assert torch.get_num_threads() == before
    assert {row["threads"] for row in found["times"]} == {1, 2}


def test_programs_that_are_not_installed_are_named(monkeypatch, no_processes):
    for package in ("onnxruntime", "openvino"):
        monkeypatch.setitem(sys.modules, package, None)
    found = timing.time_predictions("lenet", BENCHMARKS["mnist"], 0.9, batches=[1], rounds=1)
    assert found["base"] == "torch"
    assert [row["contender"] for row in found["times"]] == ["moon-runtime", "torch"]
    assert found["not_compared"].keys() == {"onnxruntime", "openvino"}
    assert "openvino" in found["not_compared"]["openvino"]


@pytest.mark.parametrize(
    ("net", "name", "size"),
    [
        ("resnet18", "cifar10", 32),
        ("resnet50", "imagenet-v1", 224),
        ("mobilenet_v2", "imagenet-v1", 224),
        ("resnet18-imagenet", "imagenet-v1", 224),
        ("lenet", "mnist", 28),
        ("moon.nets:resnet18", "cifar10", 32),
    ],
)
def test_a_network_is_timed_with_images_that_it_is_made_for(net, name, size):
    found = timing.benchmark_for(net)
    assert (found.name, found.size) == (name, size)


def test_mobilenet_has_the_weights_of_the_paper():
    with torch.device("meta"):
        model = mobilenet_v2()
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_504_872  # as torchvision's
    assert model(torch.empty(2, 3, 224, 224, device="meta")).shape == (2, 1000)


@pytest.mark.parametrize("path", sorted(ROOT.glob("results/bench/predict-*.json")), ids=lambda path: path.stem)
def test_the_table_in_the_documentation_is_that_of_the_kept_file(path):
    page = (ROOT / "docs" / "speed.md").read_text()
    if not re.search(rf"predict_table\.py results/bench/{path.name}", page):
        pytest.skip("has no table on the page")
    done = subprocess.run(
        [sys.executable, ROOT / "results" / "bench" / "predict_table.py", path],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout in page
