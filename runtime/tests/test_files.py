"""Files that are damaged, foreign or malicious are one-line errors; good files say what they contain."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from detectors import classifier
from files import encode, pack, with_digest
from moon_runtime import Network, NetworkError
from moon_runtime.library import library

WEIGHT = np.zeros((2, 3, 3, 3), "f")
WEIGHT[0, 2, 2, 2] = 0.5
WEIGHT[1, 0, 0, 0] = 2
CONV = {"op": "conv2d", "in": [0], "out": 1, "weight": "w", "bias": None, "padding": [1, 1], "shape": [2, 3, 3, 3]}


def make(tensors: dict[str, np.ndarray] | None = None, graph: Any = None, **description: Any) -> bytes:
    description = {"input": [3, 4, 4], "outputs": {"y": 1}} | description
    return pack([CONV] if graph is None else graph, encode("w", WEIGHT) | (tensors or {}), **description)


def with_header(change: Any, file: bytes | None = None) -> bytes:
    """The file with another header, and with the digest that belongs to it."""
    file = file or make()
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    header["__metadata__"]["sha256"] = "0" * 64
    text = change(header)
    return with_digest(header if text is None else text, file[8 + length :])


def test_a_file_says_what_it_contains(tmp_path: Path) -> None:
    path = tmp_path / "a.moon"
    path.write_bytes(make(classes=["ä", "b\n"], preprocess={"mean": [0.5, 1e-3, -2]}))
    network = Network(path)
    assert network.input_shape == (3, 4, 4)
    assert network.output_shapes == {"y": (2, 4, 4)}
    assert network.metadata["classes"] == ["ä", "b\n"]
    assert network.metadata["preprocess"] == {"mean": [0.5, 1e-3, -2]}
    assert network.tensor("w.counts").tolist() == [1, 1]
    assert network(np.ones((0, 3, 4, 4)))["y"].shape == (0, 2, 4, 4)
    with pytest.raises(KeyError, match="there is no tensor 'v'"):
        network.tensor("v")
    with pytest.raises(ValueError, match=r"images must have the shape \(images, 3, 4, 4\), not \(3, 4, 4\)"):
        network(np.ones((3, 4, 4)))
    with pytest.raises(ValueError, match="threads must be between 1 and 256"):
        network.threads = 0
    with pytest.raises(FileNotFoundError, match="there is no file"):
        Network(tmp_path / "b.moon")


def test_every_shorter_file_is_an_error() -> None:
    file = make()
    for size in range(len(file)):
        with pytest.raises(NetworkError):
            Network(file[:size])


def test_every_changed_byte_is_noticed() -> None:
    file = make()
    rng = np.random.default_rng(0)
    for position in range(len(file)):
        for change in (1, 32, *rng.integers(1, 256, 2).tolist()):
            with pytest.raises(NetworkError):
                Network(file[:position] + bytes([file[position] ^ change]) + file[position + 1 :])


def test_a_header_with_changed_bytes_and_a_valid_digest_does_not_crash() -> None:
    file = make()
    length = int.from_bytes(file[:8], "little")
    digest = json.loads(file[8 : 8 + length])["__metadata__"]["sha256"].encode()
    header = file[8 : 8 + length].replace(digest, b"0" * 64)
    rng = np.random.default_rng(0)
    for position in range(length):
        for byte in rng.integers(0, 256, 3).tolist():
            changed = header[:position] + bytes([byte]) + header[position + 1 :]
            with contextlib.suppress(ValueError):
                Network(with_digest(changed, file[8 + length :]))(np.ones((17, 3, 4, 4)))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (b"", "only 0 bytes"),
        (b"\xff" * 100, "not a .moon file"),
        (with_header(lambda header: b"[1, 2"), "not valid JSON"),
        (with_header(lambda header: b"[" * 100000), "too many levels"),
        (with_header(lambda header: b'{"a": 1, "a": 2}'), "occurs twice"),
        (with_header(lambda header: b'{"a": "\\ud800"}'), "surrogate"),
        (with_header(lambda header: header.pop("__metadata__") and None), "without the description of a network"),
        (with_header(lambda header: header["w.gaps"].update(data_offsets=[0, 2**60])), "not possible"),
        (with_header(lambda header: header["w.gaps"].update(data_offsets=[4, 2])), "does not fit its data"),
        (with_header(lambda header: header["w.gaps"].update(shape=[2**17, 2**17, 2**17, 2**17])), "not possible"),
        (with_header(lambda header: header["w.gaps"].update(dtype="F4")), "unknown type"),
        (make(format=2), "format 2; this version reads format 1"),
        (make(input=[3, 4]), "\"input\" shape"),
        (make(input=[3, 2**16, 2**16]), "input is too large"),
        (make(input=[3, 0, 4]), "integer from 1"),
        (make(outputs={}), "no outputs"),
        (make(outputs={"y": 2}), "not a tensor"),
        (with_header(lambda header: header["__metadata__"].update(sha256="f" * 64)), "damaged"),
        (with_header(lambda header: header["__metadata__"].pop("sha256") and None), "no sha256"),
        (make()[:-1] + b"x", "damaged: it does not match its sha256"),
        (make(graph=[CONV | {"op": "matmul"}]), "\"matmul\" is not supported"),
        (make(graph=[CONV | {"in": [1]}]), "used before it is computed"),
        (make(graph=[CONV | {"out": 0}]), "out must be an integer from 1"),
        (make(graph=[CONV, CONV]), "computed twice"),
        (make(graph=[CONV | {"act": "tanh"}]), "\"tanh\" is not supported"),
        (make(graph=[{"op": "act", "in": [0], "out": 1}]), "\"act\" needs an activation"),
        (make(graph=[CONV | {"weight": "v"}]), "\"v.counts\" is missing"),
        (make(graph=[CONV | {"bias": "b"}]), "\"b\" is missing"),
        (make({"b": np.ones(3, "f")}, [CONV | {"bias": "b"}]), "3 elements, not 2"),
        (make(graph=[CONV | {"stride": [0, 1]}]), "stride must be an integer from 1"),
        (make(graph=[CONV | {"padding": [2**16, 2**16]}]), "too large"),
        (make(graph=[CONV | {"dilation": [9, 9]}]), "filter is larger"),
        (make(graph=[CONV | {"groups": 2}]), "does not fit an input with 3 channels"),
        (make(graph=[CONV | {"shape": [2, 3, 3]}]), "\"shape\" of 4 sizes"),
        (make(graph=[CONV | {"shape": [3, 3, 3, 3]}]), "one count"),
        (make(graph=[CONV | {"shape": [2, 3, 3, 1]}]), "outside of its shape"),
        (make({"w.counts": np.array([2**32 - 1, 1], "<u4")}), "fewer values"),
        (make({"w.counts": np.array([0, 1], "<u4")}), "more values"),
        (make({"w.gaps": np.array([26, 0, 0], "u1")}), "more values or gaps"),
        (make({"w.values": np.ones(2, "i1")}), "\"w.scale\" is missing"),
        (make(graph=[{"op": "add", "in": [0], "out": 1}]), "needs 2 input"),
        (make(graph=[CONV, {"op": "add", "in": [0, 1], "out": 2}]), "different shapes"),
        (make(graph=[{"op": "max_pool", "in": [0], "out": 1}]), "kernel must be two integers"),
        (make(graph=[{"op": "max_pool", "in": [0], "out": 1, "kernel": [2, 2], "padding": [2, 2]}]), "half"),
        (make(graph=[{"op": "linear", "in": [0], "out": 1, "weight": "w", "shape": [2, 3]}]), "does not fit"),
    ],
)  # fmt: skip
def test_bad_files_are_one_line_errors(file: bytes, message: str) -> None:
    with pytest.raises(NetworkError, match=message) as raised:
        Network(file)
    assert "\n" not in str(raised.value)


def pool(kernel: int) -> bytes:
    """A few hundred bytes, and kernel^4 comparisons for an image."""
    op = {"op": "max_pool", "in": [0], "out": 1, "kernel": [kernel, kernel], "stride": [1, 1]}
    return pack([op], {}, input=[1, 2 * kernel - 1, 2 * kernel - 1], outputs={"y": 1})


def chain(are_equal: bool) -> bytes:
    """80 operations on one weight of 300 x 300; those that are not equal have different dilations."""
    op = {"op": "conv2d", "weight": "w", "shape": [300, 300, 1, 1]}
    graph = [op | {"in": [i], "out": i + 1, "dilation": [1 if are_equal else i + 1, 1]} for i in range(80)]
    return pack(graph, encode("w", np.ones((300, 300), "f"), "|i1"), input=[300, 1, 1], outputs={"y": 80})


@pytest.mark.parametrize(
    ("file", "limit", "message"),
    [
        (
            pool(2048),
            1,
            r"an image takes 1759\d\d billion operations, more than the limit of 1000 billion; if you trust",
        ),
        (pool(2048), 100, "load it with limit=176$"),
        (chain(are_equal=False), 0.01, "needs at least 0.0 GB of memory, more than the limit of 0.0 GB; if you trust"),
        (make(), 0, "the limit must be a number above 0"),
        (make(), float("nan"), "the limit must be a number above 0"),
    ],
)
def test_what_needs_more_than_the_limit_is_refused(file: bytes, limit: float, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        Network(file, limit=limit)
    Network(file, limit=float("inf"))


def test_operations_share_their_weights() -> None:
    """In 20 MB; each of 80 copies would need 0.4 MB, and 0.5 MB more for batches."""
    network = Network(chain(are_equal=True), limit=0.01)
    assert network(np.ones((33, 300, 1, 1)))["y"].shape == (33, 300)


def sort_60_million() -> Callable[[], object]:
    program: list[dict[str, Any]] = [{"op": "scatter", "in": [0, {"value": 1}], "size": 2**20, "out": 2}]
    program += [{"op": "topk", "in": [i], "k": 2**20, "out": i + 1} for i in range(2, 62)]
    network = Network(classifier([*program, {"op": "sum", "in": [62], "out": 63}]))
    return lambda: network.predict(np.zeros((1, 1, 1, 4), np.uint8))


def pool_with(threads: int) -> Callable[[], object]:
    network = Network(pool(512), threads, limit=float("inf"))
    return lambda: network(np.ones((1, *network.input_shape)))


@pytest.mark.parametrize("call", [lambda: pool_with(1), lambda: pool_with(2), sort_60_million])
def test_signals_interrupt_the_computation_of_an_image(call: Any) -> None:
    """It would take ten seconds or more."""

    def stop(*_: object) -> None:
        raise InterruptedError

    compute, before = call(), signal.signal(signal.SIGALRM, stop)
    try:
        for _ in range(2):  # an interrupted network computes again
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            began = time.monotonic()
            with pytest.raises(InterruptedError):
                compute()
            assert time.monotonic() - began < 1.5  # a second on a busy machine; usually some hundredths
    finally:
        signal.signal(signal.SIGALRM, before)


def write(path: Path, start: bytes, size: int) -> Path:
    """A file that may be huge, and occupies almost nothing on disk."""
    path.write_bytes(start)
    os.truncate(path, size)
    return path


def error_of(path: Path) -> str:
    """What `moon_load` itself says about a file that it must refuse, as a program in C reads it."""
    error = ctypes.create_string_buffer(512)
    assert not library.moon_load(os.fsencode(path), 1, error, 512)
    assert library.moon_check_length(os.fsencode(path), error, 512) == -1
    return error.value.decode()


@pytest.mark.parametrize(
    ("start", "size", "message"),
    [
        (make(), 3 * 2**30, r"it has 3221225472 bytes, and its header declares \d+$"),
        (make(), len(make()) + 1, "its header declares"),
        (with_header(lambda header: header["w.gaps"].update(data_offsets=[0, 2**50])), 3 * 2**30, "header declares"),
        (with_header(lambda header: header["w.gaps"].update(data_offsets=[0, -1])), 3 * 2**30, "no valid data_offsets"),
        (b"", 3 * 2**30, "the header of the file"),
        (b"\xff" * 8, 3 * 2**30, "not a .moon file, or it is cut off"),
    ],
)  # fmt: skip
def test_a_file_of_another_length_is_not_read(start: bytes, size: int, message: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.moon", start, size)
    assert re.search(message, error_of(path))
    with pytest.raises(NetworkError, match=message) as raised:
        Network(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert "\n" not in str(raised.value)


def test_a_file_with_a_large_hole_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hole = {"dtype": "U8", "shape": [3 * 2**30], "data_offsets": [0, 3 * 2**30]}
    start = with_header(lambda header: header.update(hole=hole))
    size = 8 + int.from_bytes(start[:8], "little") + 3 * 2**30
    assert f"needs {size} bytes of memory, but occupies only" in error_of(write(tmp_path / "a.moon", start, size))

    file = make({"x": np.zeros(2**20, "u1")})
    path = write(tmp_path / "b.moon", file[: -(2**20)], len(file))  # the same bytes, most of them a hole
    assert not Network(path).tensor("x").any()
    monkeypatch.setenv("MOON_MAX_BYTES", "1000000")
    assert f"if you trust it, set MOON_MAX_BYTES={len(file)}" in error_of(path)
    monkeypatch.setenv("MOON_MAX_BYTES", str(len(file)))
    Network(path)
    monkeypatch.setenv("MOON_MAX_BYTES", "1000")
    path.write_bytes(make({"x": np.random.default_rng(0).integers(0, 256, 2**20, "u1")}))  # occupies all of it on disk
    Network(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for a writer
    for name in ("pipe", "."):
        assert error_of(tmp_path / name).endswith("is not a regular file")
    assert error_of(tmp_path / "nothing").endswith("(No such file or directory)")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "file").write_bytes(make())
    Network(tmp_path / "link")


def test_digest_is_that_of_hashlib() -> None:
    for size in (0, 1, 55, 56, 63, 64, 65, 1000):
        data = np.arange(size, dtype="u1")
        file = pack([{"op": "act", "in": [0], "out": 1, "act": "relu"}], {"x": data}, input=[1, 1, 1], outputs={"y": 1})
        assert Network(file).tensor("x").tolist() == data.tolist()
