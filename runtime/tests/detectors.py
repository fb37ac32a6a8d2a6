"""Programs of detectors: a reference in NumPy, written for clarity, and files that contain them."""

from __future__ import annotations

from typing import Any

import numpy as np
from files import pack

UNARY = {
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt, "square": np.square,
    "isnan": np.isnan, "not": lambda x: x == 0,
}  # fmt: skip
BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "pow": np.power, "minimum": np.minimum,
    "maximum": np.maximum, "gt": np.greater, "ge": np.greater_equal, "lt": np.less, "le": np.less_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


def logsumexp(x: np.ndarray) -> np.ndarray:
    largest = x.max() if np.isfinite(x.max()) or np.isnan(x.max()) else 0
    return np.log(np.exp(x - largest).sum()) + largest


REDUCTIONS = {
    "sum": np.sum, "mean": np.mean, "amax": np.max, "amin": np.min, "argmax": np.argmax, "norm": np.linalg.norm,
    "logsumexp": logsumexp,
}  # fmt: skip


def order(x: np.ndarray) -> np.ndarray:
    """Positions in descending order, NaN first; among equals the lower position first."""
    return np.lexsort((np.arange(len(x)), np.where(np.isnan(x), 0, -x), ~np.isnan(x)))


def position(x: float, length: int) -> int | None:
    return int(x) if 0 <= x < length and x == int(x) else None


def step(op: dict[str, Any], xs: list[np.ndarray]) -> np.ndarray:
    name, x = op["op"], xs[0]
    if name in UNARY:
        return UNARY[name](x)
    if name in BINARY:
        return BINARY[name](*xs)
    if name in REDUCTIONS:
        return np.atleast_1d(REDUCTIONS[name](x))
    match name:
        case "where":
            return np.where(xs[0] != 0, xs[1], xs[2])
        case "softmax":
            return np.exp(x - x.max()) / np.exp(x - x.max()).sum()
        case "log_softmax":
            return x - x.max() - np.log(np.exp(x - x.max()).sum())
        case "topk":
            return x[order(x)[: op["k"]]]
        case "topk_index":
            return order(x)[: op["k"]]
        case "slice":
            return x[op["start"] : op["end"]]
        case "concat":
            return np.concatenate(xs)
        case "matmul":
            kind = np.float64 if xs[1].dtype == np.float64 else np.float32
            return xs[1].astype(kind) @ x.astype(kind)
        case "distances":
            return np.linalg.norm(xs[1].astype(np.float64) - x, axis=1)
        case "row":
            row = position(x[0], len(xs[1]))
            return np.full(xs[1].shape[1], np.nan) if row is None else xs[1][row]
        case "scatter":
            result = np.zeros(op["size"])
            for at, value in zip(*np.broadcast_arrays(*xs), strict=True):
                if position(at, op["size"]) is not None:
                    result[int(at)] = value
            return result
        case "rank":
            return np.array([np.nan if np.isnan(v) else (xs[1] <= v).sum() for v in x])
    raise KeyError(name)


def run(program: list[dict[str, Any]], tensors: dict[str, np.ndarray], *inputs: np.ndarray) -> dict[int, np.ndarray]:
    """All vectors of a program; `inputs` are logits and features of one image."""
    known = {i: x.astype(np.float64) for i, x in enumerate(inputs)}

    def find(operand: Any) -> np.ndarray:
        if isinstance(operand, int):
            return known[operand]
        if "value" in operand:
            return np.array([float(operand["value"])])
        tensor = tensors[operand["tensor"]]
        return tensor if tensor.ndim == 2 else tensor.astype(np.float64).reshape(-1)

    with np.errstate(all="ignore"):
        for op in program:
            known[op["out"]] = np.asarray(step(op, [find(x) for x in op["in"]]), np.float64)
    return known


THRESHOLD = {"accept": 0.95, "confidence": None, "per_class": False}


def classifier(
    program: list[dict[str, Any]],
    tensors: dict[str, np.ndarray] | None = None,
    logits: int = 3,
    features: int = 4,
    output: int | None = None,
    **description: Any,
) -> bytes:
    """A file whose features and logits are pixels: those of the channels and of the first channels of a 1x1 image."""
    known = {"threshold": np.array([0.0]), "calibration": np.array([-1.0, 0.0, 0.0, 2.0])} | (tensors or {})
    graph = [
        {"op": "linear", "in": [0], "out": 1, "weight": "pick.logits"},
        {"op": "linear", "in": [0], "out": 2, "weight": "pick.features"},
    ]
    channels = max(logits, features)
    known["pick.logits"] = np.eye(logits, channels, dtype="f")
    known["pick.features"] = np.eye(features, channels, dtype="f")
    defaults = {
        "input": [channels, 1, 1],
        "outputs": {"logits": 1, "features": 2},
        "preprocess": {"mean": [0.5] * channels, "std": [0.25] * channels, "resize": "cover"},
        "classes": [f"class {i}" for i in range(logits)],
        "temperature": 1.0,
        "detector": {"name": "test", "options": {}, "program": program,
                     "output": program[-1]["out"] if output is None and program else output or 0},
        "threshold": THRESHOLD,
    }  # fmt: skip
    return pack(graph, known, **(defaults | description))


def normalised(pixels: np.ndarray) -> np.ndarray:
    """What the network of `classifier` gets, (images, channels)."""
    return (pixels.reshape(len(pixels), -1) / 255 - 0.5) / 0.25
