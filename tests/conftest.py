"""Fixtures: small models, random evidence, small data sets on disk, and run folders."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = "1"  # kernels then run on a CPU; triton reads this when it is imported

import numpy as np
import pytest
import torch
from torch import nn

from moon import Evidence


@pytest.fixture(autouse=True)
def fixed_seed():
    torch.manual_seed(0)


@pytest.fixture
def torch_threads():
    """A function that sets the number of CPU threads of torch until the end of the test."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.fixture
def run_group():
    """A function like `subprocess.run` that, on a timeout, also ends the processes that the command has forked."""

    def run(command, *, timeout, text="", **settings) -> subprocess.CompletedProcess[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, text=True, start_new_session=True, **pipes, **settings) as process:
            try:
                out, err = process.communicate(text, timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    return run


@pytest.fixture
def small_net():
    """A function that makes a small net with BatchNorm for 1x8x8 images and 4 known classes."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(512, 16),
            nn.ReLU(),
            nn.Linear(16, 4),
        )

    return make


@pytest.fixture
def evidence():
    """A function that makes random evidence: 3 known classes, rotations, layers, and unknown outputs if `is_open`."""

    def make(count: int = 40, is_open: bool = True, seed: int = 0) -> Evidence:
        rng = torch.Generator().manual_seed(9)
        weight = torch.eye(4, 8) + 0.3 * torch.randn(4, 8, generator=rng)
        head = weight[: 3 + is_open], 0.1 * torch.randn(4, generator=rng)[: 3 + is_open]
        rng = torch.Generator().manual_seed(seed)
        labels = torch.randint(3, (count,), generator=rng)
        features = (torch.randn(count, 8, generator=rng) + 2 * torch.eye(3, 8)[labels]).relu()
        rotations = 3 * torch.eye(4) + torch.randn(count, 4, 4, generator=rng)
        layers = torch.rand(count, 10, generator=rng)
        return Evidence(features @ head[0].T + head[1], features, 3, labels, head, rotations, layers, (4, 6))

    return make


@pytest.fixture(scope="session")
def _data(tmp_path_factory) -> Path:
    rng = np.random.default_rng(0)
    root = tmp_path_factory.mktemp("data")

    def write(name: str, split: str, images: np.ndarray, labels: np.ndarray) -> None:
        (root / name).mkdir(parents=True, exist_ok=True)
        np.savez(root / name / f"{split}.npz", images=images.astype(np.uint8), labels=labels)

    for split, count in (("train", 256), ("test", 100)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 120, (count, 28, 28, 1))
        for image, label in zip(images, labels, strict=True):
            image[2 * label : 2 * label + 8, 4:24] += 130
        write("mnist", split, images, labels)
    write("notmnist", "test", rng.integers(0, 256, (30, 28, 28, 1)), np.arange(30) % 10)
    write("fashionmnist", "test", rng.integers(0, 256, (30, 28, 28, 1)), np.arange(30) % 10)
    write("dtd", "test", rng.integers(0, 256, (30, 32, 32, 3)), np.zeros(30, int))
    return root


@pytest.fixture
def data_root(_data, tmp_path) -> Path:
    """A data root whose 'mnist' is easy to learn and whose unknown sets are noise of other kinds."""
    return shutil.copytree(_data, tmp_path / "data")


@pytest.fixture
def tuning_set(data_root) -> str:
    """An unknown set under the data root that no benchmark scores."""
    images = np.random.default_rng(1).integers(0, 256, (30, 28, 28, 1)).astype(np.uint8)
    (data_root / "other").mkdir()
    np.savez(data_root / "other" / "test.npz", images=images, labels=np.zeros(30, int))
    return "other"


@pytest.fixture
def images(data_root):
    """The images of 'mnist'."""
    from moon.run.images import BenchmarkImages

    return BenchmarkImages.open(data_root, "mnist")


@pytest.fixture(scope="session")
def untrained_run(tmp_path_factory):
    """A function that writes the folder of a run whose weights are the first ones, and returns it."""
    from moon.data import BENCHMARKS
    from moon.files import sha256
    from moon.recipe import build, make_recipe
    from moon.records import write_record
    from moon.training.checkpoint import save_tensors

    def write(benchmark="digits", objective="cross-entropy", **settings) -> Path:
        recipe = make_recipe(benchmark, objective, **settings)
        folder = tmp_path_factory.mktemp("untrained") / recipe.name
        folder.mkdir()
        (folder / "recipe.json").write_text(json.dumps(recipe.to_json()))
        model = build.network(recipe, BENCHMARKS[benchmark], "cpu")
        save_tensors(folder / "model.safetensors", dict(model.state_dict()))
        write_record(folder / "result.json", {"model_sha256": sha256(folder / "model.safetensors")})
        return folder

    return write


@pytest.fixture(scope="session")
def trained_runs(_data, tmp_path_factory):
    """A function that trains a run on 'mnist' once per test session and returns its folder, which must not change."""
    from moon.recipe import make_recipe
    from moon.run.images import BenchmarkImages
    from moon.run.train import train_run

    folder, done = tmp_path_factory.mktemp("runs"), {}

    def train(**settings) -> Path:
        recipe = make_recipe("mnist", root=_data, net="lenet-norm", batch_size=32, **settings)
        if recipe.name not in done:
            train_run(recipe, folder / recipe.name, BenchmarkImages.open(_data, "mnist"))
            done[recipe.name] = folder / recipe.name
        return done[recipe.name]

    return train


def _fabricate(folder, recipe, *, auroc=0.9, fpr95=0.3, accuracy=0.94, ece=0.02, seconds=100.0, arrays=True, **more):
    """Write the folder of a finished and scored run; `auroc` is one number for all sets, or a dict by set."""
    folder = folder / recipe.name
    folder.mkdir(parents=True)
    near, far = more.get("near", ["notmnist"]), more.get("far", ["dtd", "tin"])
    detectors = more.get("detectors", ["msp", "odin", "ebo", "knn", "klm", "tempscale"])

    def metrics(name):
        value = auroc[name] if isinstance(auroc, dict) else auroc
        return {"auroc": value, "fpr95": fpr95, "aupr_in": value, "aupr_out": value}

    def mean(names):
        return {key: float(np.mean([metrics(name)[key] for name in names])) for key in metrics(names[0])}

    table = {"sets": {name: metrics(name) for name in near + far}, "near": mean(near), "far": mean(far)}
    known = {"accuracy": accuracy, "ece": ece, "nll": 0.2, "brier": 0.1}
    summary = {
        "benchmark": recipe.benchmark, "images": dict.fromkeys(["known", *near, *far], 50), "sha256": {}, "missing": [],
        "left_out": {}, "search": {}, "known": known, "known_scaled": known | {"temperature": 1.1}, "p_unknown": {},
        "temperatures": {}, "detectors": dict.fromkeys(detectors, table),
    }  # fmt: skip
    result = {"known": known, "seconds": seconds, "model_sha256": "0" * 64, "software": {}, "hardware": "none",
              "layer_density": {"a.weight": 0.2, "b.weight": 0.05}}  # fmt: skip
    log = [{"epoch": e, "loss": 1.0, "val_accuracy": 0.5 + 0.1 * e, "w": 0.1 * e, "p_unknown_correct": 0.01,
            "p_unknown_wrong": None, "seconds": 1.0} for e in range(3)]  # fmt: skip
    for name, value in (("recipe", recipe.to_json()), ("result", result), ("scores", summary)):
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in log))
    if arrays:
        rng = np.random.default_rng(recipe.seed)
        scores = {
            f"{d}/{name}": rng.normal(name == "known", 1, 50) for d in detectors for name in ["known", *near, *far]
        }
        np.savez(folder / "scores.npz", **scores)
        labels = np.arange(50) % 10
        np.savez(folder / "known.npz", labels=labels, prediction=np.where(rng.random(50) < 0.9, labels, 0),
                 confidence=rng.uniform(0.3, 1, 50).astype(np.float32), p_unknown=np.zeros(50, np.float32),
                 first_component=rng.normal(labels, 1).astype(np.float32))  # fmt: skip
        images = rng.integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
        np.savez(folder / "examples.npz", **{f"{s}/{n}": images for s in ("right", "wrong") for n in ("known", "dtd")})
    return folder


@pytest.fixture(scope="session")
def fabricate():
    """A function that writes the folder of a run without training; see `_fabricate`."""
    return _fabricate
