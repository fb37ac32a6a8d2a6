"""`.moon` files: weights come back exactly, and the file is small."""

import hashlib
import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from moon import Static, lenet, open_head, resnet18
from moon.export.file import encoded, network_bytes, write_network
from moon.export.graph import trace


def decoded(name, tensors, shape):
    """A sparse weight from its tensors, byte by byte, as the format is described."""
    weight = np.zeros((shape[0], int(np.prod(shape[1:]))), tensors[f"{name}.values"].dtype)
    gaps, values = iter(tensors[f"{name}.gaps"].tolist()), iter(tensors[f"{name}.values"])
    for row, count in zip(weight, tensors[f"{name}.counts"].tolist(), strict=True):
        position = -1
        for _ in range(count):
            while (gap := next(gaps)) == 255:
                position += 255
            position += gap + 1
            row[position] = next(values)
    assert next(gaps, None) is None
    return weight.reshape(shape)


@pytest.mark.parametrize("density", [0.0, 0.0005, 0.003, 0.05, 0.2])
def test_sparse_weights_come_back(density):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(7, 300, 3, 3)).astype(np.float32) * (rng.random((7, 300, 3, 3)) < density)
    tensors, is_sparse = encoded("w", weight, "float32")
    assert is_sparse
    assert np.array_equal(decoded("w", tensors, weight.shape), weight)


def test_long_gaps_and_full_rows():
    weight = np.zeros((4, 1024), np.float32)
    weight[0, [0, 254, 255, 511, 767, 1023]] = 1  # gaps of 0, 253, 0, 255, 255, 255
    weight[1, 255], weight[2, 1023] = 2, 3
    tensors, _ = encoded("w", weight, "float16")
    assert np.array_equal(decoded("w", tensors, weight.shape), weight)
    assert tensors["w.gaps"][:8].tolist() == [0, 253, 0, 255, 0, 255, 0, 255]


def test_dense_weights_are_stored_as_they_are():
    weight = np.ones((4, 6), np.float32)
    tensors, is_sparse = encoded("w", weight, "float16")
    assert not is_sparse
    assert np.array_equal(tensors["w"], weight)
    assert tensors["w"].dtype == np.float16


def test_int8_has_a_scale_for_each_output():
    rng = np.random.default_rng(0)
    scales = 10.0 ** np.arange(-3, 3)[:, None]
    weight = rng.normal(size=(6, 400)).astype(np.float32) * (rng.random((6, 400)) < 0.1) * scales
    weight[3] = 0
    tensors, is_sparse = encoded("w", weight, "int8")
    assert is_sparse
    scale = tensors["w.scale"]
    assert np.allclose(scale, np.abs(weight).max(1) / 127)
    found = decoded("w", tensors, weight.shape).astype(np.float32) * scale[:, None]
    assert (np.abs(found - weight) <= scale[:, None] * 0.501).all()
    dense, is_sparse = encoded("w", np.ones((4, 6), np.float32), "int8")
    assert (is_sparse, dense["w"].dtype) == (False, np.float16)


def test_the_same_network_gives_the_same_bytes():
    graph = trace(lenet(10).eval(), (1, 28, 28))
    assert len({network_bytes(graph, {"classes": ["ä", "\x7f\n"]}) for _ in range(20)}) == 1


def test_an_unknown_precision_is_an_error():
    with pytest.raises(ValueError, match="float32, float16 or int8, not 'int4'"):
        network_bytes(trace(lenet(10).eval(), (1, 28, 28)), {}, "int4")


def test_a_weight_that_is_too_large_is_an_error():
    with pytest.raises(ValueError, match="w: has a weight of 1e\\+06, too large for float16"):
        encoded("w", np.array([[1e6, 0.0]], np.float32), "float16")


@pytest.mark.parametrize(("sparsity", "limit"), [(0.95, 2.0), (0.99, 0.5)])
def test_a_sparse_resnet_is_a_small_file(tmp_path, sparsity, limit):
    model = open_head(resnet18(10))
    topology = Static(model, torch.optim.SGD(model.parameters(), lr=0.1), sparsity)
    graph = trace(model.eval(), (3, 32, 32))
    size = write_network(tmp_path / "net.moon", graph, {"classes": list("abcdefghij")})
    assert size == (tmp_path / "net.moon").stat().st_size < limit * 1e6
    with safe_open(tmp_path / "net.moon", "np") as file:
        content, digest = json.loads(file.metadata()["moon"]), file.metadata()["sha256"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    assert (content["format"], content["input"], content["classes"][0]) == (1, [3, 32, 32], "a")
    convolutions = [op for op in content["graph"] if op["op"] == "conv2d" and "shape" in op]
    assert len(convolutions) >= 17  # the others are dense at this sparsity
    for op in convolutions:
        name, exact = op["weight"], graph.weights[op["weight"]].numpy()
        assert np.array_equal(decoded(name, tensors, op["shape"]), exact.astype(np.float16))
        assert tensors[f"{name}.counts"].sum() == int(topology.masks[name].sum())
    text = (tmp_path / "net.moon").read_bytes()
    assert text.count(digest.encode()) == 1
    assert hashlib.sha256(text.replace(digest.encode(), b"0" * 64)).hexdigest() == digest
