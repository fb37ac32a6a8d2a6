"""The operations in NumPy, in float64, written for clarity."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

ACTIVATIONS = {
    None: lambda x: x,
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(erf)(x / 2**0.5)),
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def windows(x: np.ndarray, op: dict[str, Any], kernel: tuple[int, int], fill: float) -> np.ndarray:
    """(images, channels, output rows, output columns, *kernel)."""
    (a, b), (s, t), (d, e) = (op.get(key, default) for key, default in
                              (("padding", (0, 0)), ("stride", kernel), ("dilation", (1, 1))))  # fmt: skip
    x = np.pad(x, ((0, 0), (0, 0), (a, a), (b, b)), constant_values=fill)
    reach = d * (kernel[0] - 1) + 1, e * (kernel[1] - 1) + 1
    return sliding_window_view(x, reach, (2, 3))[:, :, ::s, ::t, ::d, ::e]


def conv2d(x: np.ndarray, op: dict[str, Any], weight: np.ndarray) -> np.ndarray:
    groups = op.get("groups", 1)
    parts = zip(np.split(x, groups, 1), np.split(weight, groups), strict=True)
    with_stride = {"stride": (1, 1)} | op
    return np.concatenate(
        [np.einsum("ncyxij,kcij->nkyx", windows(p, with_stride, w.shape[2:], 0), w) for p, w in parts], 1
    )


def run(graph: list[dict[str, Any]], tensors: dict[str, np.ndarray], images: np.ndarray) -> dict[int, np.ndarray]:
    """All tensors of a network. `tensors` has the weights as dense arrays."""
    known = {0: images.astype(np.float64)}
    for op in graph:
        xs = [known[i] for i in op["in"]]
        x = xs[0]
        match op["op"]:
            case "conv2d":
                y = conv2d(x, op, tensors[op["weight"]].astype(np.float64))
            case "linear":
                y = (x[:, :, 0, 0] @ tensors[op["weight"]].astype(np.float64).T)[:, :, None, None]
            case "add":
                y = x + xs[1]
            case "mul":
                y = x * xs[1]
            case "concat":
                y = np.concatenate(xs, 1)
            case "max_pool":
                y = windows(x, op, op["kernel"], -np.inf).max((-2, -1))
            case "avg_pool":
                y = windows(x, op, op["kernel"], 0).mean((-2, -1))
                if not op.get("count_include_pad", True):
                    y /= windows(np.ones_like(x), op, op["kernel"], 0).mean((-2, -1))
            case "global_avg_pool":
                y = x.mean((2, 3), keepdims=True)
            case "global_deviation":
                y = x.std((2, 3), keepdims=True)
            case "flatten":
                y = x.reshape(len(x), -1, 1, 1)
            case "act":
                y = x
            case "affine":
                y = x * tensors[op["scale"]][:, None, None] + tensors[op["shift"]][:, None, None]
            case "softmax":
                y = np.exp(x - x.max(1, keepdims=True))
                y /= y.sum(1, keepdims=True)
            case name:
                raise KeyError(name)
        if op.get("bias"):
            y = y + tensors[op["bias"]].astype(np.float64)[:, None, None]
        known[op["out"]] = ACTIVATIONS[op.get("act")](y)
    return known
