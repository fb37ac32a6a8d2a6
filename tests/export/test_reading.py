"""`.moon` files are read without the runtime; foreign and damaged ones are told apart."""

import hashlib
import json

import numpy as np
import pytest
from safetensors.numpy import save

from moon import lenet
from moon.errors import DamagedCheckpoint, DataError
from moon.export.file import encoded, network_bytes
from moon.export.reading import dense_weight, read_file
from moon.export.tracing import trace


@pytest.fixture(scope="module")
def content():
    return network_bytes(trace(lenet(10).eval(), (1, 28, 28)), {"classes": list("0123456789")}, "float16")


def signed(tensors, metadata):
    """A file with the right digest, whatever it contains."""
    file = save(tensors, metadata | {"sha256": "0" * 64})
    return file.replace(b"0" * 64, hashlib.sha256(file).hexdigest().encode(), 1)


def test_what_was_written_is_read(tmp_path, content):
    (tmp_path / "a.moon").write_bytes(content)
    description, tensors = read_file(tmp_path / "a.moon")
    assert (description["format"], description["input"], description["classes"][3]) == (1, [1, 28, 28], "3")
    assert tensors["body.0.weight"].shape == (6, 1, 5, 5)


def test_every_changed_byte_is_noticed(tmp_path, content):
    path = tmp_path / "a.moon"
    for at in [0, 3, 9, 40, *range(100, len(content), 9973)]:
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((DamagedCheckpoint, DataError), match=r"a\.moon: is (damaged|not a \.moon file)"):
            read_file(path)


@pytest.mark.parametrize("size", [100, 3000, -1])
def test_a_truncated_file_is_damaged(tmp_path, content, size):
    (tmp_path / "a.moon").write_bytes(content[:size])
    with pytest.raises(DamagedCheckpoint, match=r"a\.moon: is damaged or incomplete; copy it again"):
        read_file(tmp_path / "a.moon")


@pytest.mark.parametrize(
    "foreign",
    [
        b"",
        b"\x89PNG\r\n\x1a\n0000",
        b"\x05\0\0\0\0\0\0\0{}   ",
        b"\x05\0\0\0\0\0\0\0{{{{{",
        b"\x02\0\0\0\0\0\0\0[]",
        save({"x": np.zeros(3)}),
        save({"x": np.zeros(3)}, {"moon": "{}"}),
        signed({}, {"moon": "not JSON"}),
        signed({}, {"moon": "[1]"}),
        signed({}, {"moon": "{}"}),
    ],
)
def test_a_foreign_file_is_not_a_moon_file(tmp_path, foreign):
    (tmp_path / "a.moon").write_bytes(foreign)
    with pytest.raises(DataError, match=r"a\.moon: is not a \.moon file"):
        read_file(tmp_path / "a.moon")


def test_a_later_format_is_named(tmp_path):
    (tmp_path / "a.moon").write_bytes(signed({}, {"moon": json.dumps({"format": 2})}))
    with pytest.raises(DataError, match="has format 2; this version reads format 1"):
        read_file(tmp_path / "a.moon")


@pytest.mark.parametrize("precision", ["float32", "float16", "int8"])
@pytest.mark.parametrize("density", [0.0, 0.0005, 0.02, 1.0])
def test_weights_come_back(precision, density):
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(7, 300, 3, 3)).astype(np.float32) * (rng.random((7, 300, 3, 3)) < density)
    tensors, is_sparse = encoded("w", weight, precision)
    found = dense_weight(tensors, "w", list(weight.shape) if is_sparse else None)
    if precision == "int8" and is_sparse:
        assert np.abs(found - weight).max() <= np.abs(weight).max() / 253
    else:
        expected = weight if precision == "float32" else weight.astype(np.float16)
        assert np.array_equal(found, expected)


def _sparse(**changes):
    weight = np.zeros((2, 600), np.float32)
    weight[0, [3, 599]], weight[1, 5] = 1, 2
    return encoded("w", weight, "float32")[0] | {f"w.{name}": value for name, value in changes.items()}


@pytest.mark.parametrize(
    ("tensors", "shape", "message"),
    [
        (_sparse(), None, "needs a shape"),
        (_sparse(), [2, -3], "needs a shape"),
        (_sparse(), [3, 600], "do not fit together"),
        (_sparse(), [2, 599], "reach beyond its 599 weights"),
        (_sparse(), [2**20, 2**20], "more than an ONNX file can hold"),
        (_sparse(counts=np.array([2, 2], np.uint32)), [2, 600], "do not fit together"),
        (_sparse(counts=np.array([2**32 - 1, 4], np.uint32)), [2, 600], "do not fit together"),
        (_sparse(values=np.ones(4, np.float32)), [2, 600], "do not fit together"),
        (_sparse(gaps=np.array([3, 255, 255, 5], np.uint16)), [2, 600], "do not fit together"),
        ({"w": np.zeros((2, 3))}, None, "F16 or F32"),
        ({"w": np.zeros((2, 3), np.float32)}, [3, 2], "of the stated shape"),
    ],
)
def test_tensors_that_do_not_fit_together(tensors, shape, message):
    with pytest.raises(ValueError, match=message):
        dense_weight(tensors, "w", shape)
