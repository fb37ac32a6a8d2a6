import importlib.util
import shutil

import numpy as np
import pytest
import torch

from moon import demo
from moon.deploy.calibration import Guarantee
from moon.deploy.packing import pack_run


def test_the_recipes_differ_only_in_the_method():
    plain, outliers = (runs[0].to_json() for runs in demo.recipes(epochs=10, seeds=1).values())
    assert {key for key in outliers if plain.get(key) != outliers[key]} == {"objective", "outliers"}
    assert outliers["outliers"] == demo.OUTLIERS
    assert plain["sparsity"] == 0.95


def test_seeds_are_paired():
    runs = demo.recipes(epochs=10, seeds=3)
    assert list(runs) == [demo.PLAIN, demo.PACKED]
    assert [[r.seed for r in recipes] for recipes in runs.values()] == [[0, 1, 2]] * 2


def test_outliers_are_not_scored():
    assert demo.OUTLIERS not in (*demo.NEAR, *demo.FAR)


@pytest.fixture
def run(trained_runs, tmp_path):
    return shutil.copytree(trained_runs(epochs=6, options={"quiet_epochs": 1}), tmp_path / "run")


@pytest.fixture
def packed(run, images, tmp_path):
    """A packed network, and what was measured."""
    facts = pack_run(run, images, tmp_path / "net.moon", "mls", Guarantee(accept=0.5))
    return tmp_path / "net.moon", facts["measured"]


def test_the_packed_network_answers_about_images_of_each_kind(packed, images):
    file, measured = packed
    rows = demo.answered(file, images, measured)
    assert [len(row.images) for row in rows] == [8, 8, 8]
    assert np.array_equal(rows[0].images[[0, 7]], images.splits["test"].images[[0, 89]])  # evenly spaced
    assert np.array_equal(rows[1].images[7], images.unknown["fashionmnist"].images[29])
    assert rows[0].heading == f"Digits, known: {measured['known']['accepted']:.1%} of 90 accepted"
    rejected = (measured["notmnist"]["rejected"] + measured["fashionmnist"]["rejected"]) / 2
    assert rows[1].heading == f"Notmnist and fashionmnist, unknown: {rejected:.1%} of 60 rejected"
    assert rows[2].heading == f"Dtd, unknown: {measured['dtd']['rejected']:.1%} of 30 rejected"
    labels = [str(images.splits["test"].labels[i]) for i in np.linspace(0, 89, 8).round().astype(int)]
    assert [a == label for a, label in zip(rows[0].answers, labels, strict=True)] == list(rows[0].right)
    for row in rows[1:]:
        assert [answer == "unknown" for answer in row.answers] == list(row.right)


@pytest.mark.parametrize(("missing", "other"), [("", "ONNX Runtime"), ("onnxruntime", "PyTorch without detector")])
def test_the_time_of_another_runtime_is_measured_beside_it(packed, run, images, monkeypatch, missing, other):
    find = importlib.util.find_spec
    monkeypatch.setattr(demo, "find_spec", lambda name: None if name == missing else find(name))
    threads = torch.get_num_threads()
    times = demo.seconds_per_image(packed[0], run, images, rounds=3)
    assert list(times) == ["moon-runtime", other]
    assert min(times.values()) > 0
    assert torch.get_num_threads() == threads
