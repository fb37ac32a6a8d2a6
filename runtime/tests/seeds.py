"""Writes small networks for the fuzzer: python tests/seeds.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from detectors import BINARY, REDUCTIONS, THRESHOLD, UNARY
from files import encode, pack

rng = np.random.default_rng(0)
folder = Path(sys.argv[1])
folder.mkdir(parents=True, exist_ok=True)


def conv(index: int, out: int, name: str, shape: list[int], **rest: object) -> dict[str, object]:
    return {"op": "conv2d", "in": [index], "out": out, "weight": name, "shape": shape, "stride": [1, 1],
            "padding": [1, 1], "dilation": [1, 1], "groups": 1} | rest  # fmt: skip


def weight(*shape: int) -> np.ndarray:
    return (rng.standard_normal(shape) * (rng.random(shape) < 0.4)).astype("f")


residual = [
    conv(0, 1, "a", [6, 3, 3, 3], act="relu", bias="b"),
    conv(1, 2, "c", [6, 6, 3, 3]),
    {"op": "add", "in": [2, 1], "out": 3, "act": "relu"},
    conv(3, 4, "d", [8, 6, 3, 3], stride=[2, 2], act="silu"),
    {"op": "global_avg_pool", "in": [4], "out": 5},
    {"op": "flatten", "in": [5], "out": 6},
    {"op": "linear", "in": [6], "out": 7, "weight": "e", "shape": [5, 8], "bias": None},
    {"op": "softmax", "in": [7], "out": 8},
]
tensors = {"b": np.ones(6, "f")} | encode("a", weight(6, 3, 3, 3)) | encode("c", weight(6, 6, 3, 3), "<f2")
tensors |= encode("d", weight(8, 6, 3, 3) + np.float32(0.01), "|i1") | encode("e", weight(5, 8))
(folder / "residual.moon").write_bytes(
    pack(residual, tensors, input=[3, 8, 8], outputs={"features": 6, "logits": 7, "p": 8})
)

mixed = [
    conv(0, 1, "a", [4, 1, 3, 3], groups=4, act="hardswish"),
    {"op": "max_pool", "in": [1], "out": 2, "kernel": [3, 3], "stride": [2, 2], "padding": [1, 1], "ceil_mode": True},
    {"op": "avg_pool", "in": [1], "out": 3, "kernel": [2, 2], "stride": [2, 2], "count_include_pad": False},
    {"op": "concat", "in": [2, 3], "out": 4},
    {"op": "affine", "in": [4], "out": 5, "scale": "s", "shift": "s", "act": "relu6"},
    {"op": "global_avg_pool", "in": [5], "out": 6},
    conv(6, 7, "w", [8, 8, 1, 1], padding=[0, 0], act="sigmoid"),
    {"op": "mul", "in": [5, 7], "out": 8},
    {"op": "act", "in": [8], "out": 9, "act": "gelu"},
]
tensors = encode("a", weight(4, 1, 3, 3)) | {"s": np.ones(8, "f"), "w": weight(8, 8, 1, 1)}
(folder / "mixed.moon").write_bytes(pack(mixed, tensors, input=[4, 10, 10], outputs={"y": 9}))

# Small files that could need much time or memory.
pool = {"op": "max_pool", "in": [0], "out": 1, "kernel": [2048, 2048], "stride": [1, 1]}
(folder / "pool.moon").write_bytes(pack([pool], {}, input=[1, 4095, 4095], outputs={"y": 1}))
chain = [{"op": "linear", "in": [i], "out": i + 1, "weight": "w", "shape": [20, 20]} for i in range(80)]
(folder / "chain.moon").write_bytes(pack(chain, encode("w", weight(20, 20)), input=[20, 1, 1], outputs={"y": 80}))

# All operations of a program, on vectors of different lengths; the score is a sum over all of them.
table, vector, number = {"tensor": "t"}, {"tensor": "v"}, {"value": -2.5e-1}
steps = [{"op": name, "in": [0 if i % 2 else vector]} for i, name in enumerate(UNARY)]
steps += [{"op": name, "in": [0, vector] if i % 2 else [number, 0]} for i, name in enumerate(BINARY)]
steps += [{"op": name, "in": [1]} for name in (*REDUCTIONS, "softmax", "log_softmax")]
steps += [
    {"op": "where", "in": [0, vector, {"value": "inf"}]},
    {"op": "topk", "in": [1], "k": 3},
    {"op": "topk_index", "in": [1], "k": 4},
    {"op": "slice", "in": [1], "start": 2, "end": 6},
    {"op": "concat", "in": [0, 1, number, vector]},
    {"op": "scatter", "in": [0, vector], "size": 9},
    {"op": "matmul", "in": [1, table]},
    {"op": "matmul", "in": [1, {"tensor": "u"}]},
    {"op": "distances", "in": [1, table]},
    {"op": "distances", "in": [1, {"tensor": "u"}]},
    {"op": "row", "in": [{"value": 1}, table]},
    {"op": "rank", "in": [1, {"tensor": "r"}]},
]
for i, step in enumerate(steps):
    step["out"] = i + 2
steps += [
    {"op": "concat", "in": list(range(2, len(steps) + 2)), "out": 90},
    {"op": "isnan", "in": [90], "out": 91},
    {"op": "where", "in": [91, {"value": 0}, 90], "out": 92},
    {"op": "logsumexp", "in": [92], "out": 93},
]
pooled = [
    conv(0, 1, "a", [8, 3, 3, 3], stride=[2, 2], act="relu"),
    {"op": "global_avg_pool", "in": [1], "out": 2},
    {"op": "flatten", "in": [2], "out": 3},
    {"op": "linear", "in": [3], "out": 4, "weight": "e", "shape": [5, 8], "bias": None},
]
tensors = encode("a", weight(8, 3, 3, 3)) | encode("e", weight(5, 8)) | {"v": np.arange(5.0)}
tensors |= {"t": weight(6, 8).astype("<f2"), "u": rng.standard_normal((3, 8)), "r": np.array([-1, 0, 0, 2], "<f4")}
everything = {
    "input": [3, 8, 8], "outputs": {"features": 3, "logits": 4}, "classes": ["a", "b", "c", "d"], "temperature": 1.5,
    "preprocess": {"mean": [0.5, 0.4, 0.3], "std": [0.2, 0.25, 0.3], "resize": "cover"},
    "detector": {"name": "all", "options": {}, "program": steps, "output": 93},
    "threshold": THRESHOLD | {"per_class": True, "confidence": 0.99},
}  # fmt: skip
tensors |= {"threshold": np.zeros(4), "calibration": np.array([-1.0, 0.5, 0.0, 0.0, 1.0, 2.0])}
tensors |= {"calibration.counts": np.array([2, 0, 1, 3], "<u4")}
(folder / "all.moon").write_bytes(pack(pooled, tensors, **everything))

nearest = [
    {"op": "norm", "in": [1], "out": 2},
    {"op": "div", "in": [1, 2], "out": 3},
    {"op": "distances", "in": [3, table], "out": 4},
    {"op": "neg", "in": [4], "out": 5},
    {"op": "topk", "in": [5], "k": 2, "out": 6},
    {"op": "slice", "in": [6], "start": 1, "end": 2, "out": 7},
]
everything |= {"detector": {"name": "knn", "program": nearest, "output": 7}, "threshold": THRESHOLD}
tensors |= {"threshold": np.zeros(1), "calibration": np.arange(20.0)}
(folder / "nearest.moon").write_bytes(pack(pooled, tensors, **everything))
