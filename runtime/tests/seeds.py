"""Writes small networks for the fuzzer: python tests/seeds.py FOLDER."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
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
