"""What a `.moon` file says, computed by PyTorch: from images to class, probability, score, verdict and p-value.

The operations are those of runtime/README.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from moon.export.reading import dense_weight

_ACTIVATIONS = ("relu", "relu6", "silu", "gelu", "hardsigmoid", "hardswish", "sigmoid")
_POINTWISE = (
    "neg", "abs", "exp", "log", "sqrt", "square", "isnan", "add", "sub", "mul", "div", "pow", "minimum", "maximum",
    "gt", "ge", "lt", "le", "eq", "ne",
)  # fmt: skip


def answer(
    description: Mapping[str, Any], tensors: Mapping[str, NDArray], images: Tensor, threshold: Tensor
) -> dict[str, Tensor]:
    """What a file answers about images, (N, C, H, W), of 0 to 1; one of each per image."""
    classes, detector = len(description["classes"]), description["detector"]
    mean, std = (torch.tensor(description["preprocess"][key]).view(-1, 1, 1) for key in ("mean", "std"))
    vectors = [x.flatten(1).double() for x in run_network(description, tensors, (images - mean) / std)]
    label = _first_largest(vectors[0][:, :classes])
    probability = (vectors[0] / description["temperature"]).softmax(1).gather(1, label)
    score = run_program(detector["program"], tensors, vectors)[detector["output"]]
    calibration = torch.from_numpy(tensors["calibration"])
    is_no_higher, total = score >= calibration, len(calibration) + 1
    label, score = label.squeeze(1), score.squeeze(1)
    if description["threshold"]["per_class"]:
        counts = tensors["calibration.counts"].astype(np.int64)
        is_no_higher = is_no_higher & (label[:, None] == torch.from_numpy(np.repeat(np.arange(classes), counts)))
        total, threshold = torch.from_numpy(counts + 1)[label], threshold[label]
    return {
        "label": label,
        "probability": probability.squeeze(1).float(),
        "score": score,
        "known": score >= threshold,
        "p_value": (is_no_higher.double().sum(1) + 1) / total,
    }


def run_network(description: Mapping[str, Any], tensors: Mapping[str, NDArray], images: Tensor) -> list[Tensor]:
    """The outputs of a network for normalised images, (N, C, H, W): logits, features, and others in their order."""
    values = {0: images}
    for index, op in enumerate(description["graph"]):
        try:
            values[op["out"]] = _layer(op, tensors, [values[number] for number in op["in"]])
        except ValueError as error:
            raise ValueError(f"operation {index} ({op['op']}): {error}") from None
    outputs = dict(description["outputs"])
    return [values[number] for number in (outputs.pop("logits"), outputs.pop("features"), *outputs.values())]


def run_program(
    ops: Iterable[Mapping[str, Any]], tensors: Mapping[str, NDArray], vectors: Iterable[Tensor]
) -> dict[int, Tensor]:
    """All vectors of a detector's program by number, from the first ones; each is (N, length), or (1, length).

    NaN is the largest value, as in PyTorch; ONNX Runtime leaves it out of maxima and does not define its order.
    """
    values = dict(enumerate(vectors))
    for index, op in enumerate(ops):
        name, given = op["op"], list(op["in"])
        if name not in _OPERATIONS:
            raise ValueError(f"operation {index} of the detector ({name}): is not supported")
        table = [torch.from_numpy(_widened(tensors[given.pop()["tensor"]], name))] if name in _WITH_TABLE else []
        operands = [_operand(x, tensors, values) for x in given]
        if name in ("concat", "scatter"):  # which do not repeat a constant for every image
            operands = [x.expand(values[0].shape[0], -1) for x in operands]
        settings = {key: op[key] for key in op.keys() - {"op", "in", "out"}}
        values[op["out"]] = _OPERATIONS[name](*operands, *table, **settings).double()
    return values


def _operand(x: Any, tensors: Mapping[str, NDArray], values: Mapping[int, Tensor]) -> Tensor:
    if isinstance(x, int):
        return values[x]
    constant = tensors[x["tensor"]].astype(np.float64) if "tensor" in x else np.array(float(x["value"]))
    return torch.from_numpy(constant.reshape(1, -1))


def _widened(table: NDArray, name: str) -> NDArray:
    """A table in double, or in float32 for products with one that is stored in less."""
    return table.astype(np.float32 if name == "matmul" and table.dtype != np.float64 else np.float64)


def _layer(op: Mapping[str, Any], tensors: Mapping[str, NDArray], x: list[Tensor]) -> Tensor:
    """The result of an operation of the network with its activation."""

    def stored(key: str) -> Any:
        return None if op.get(key) is None else torch.from_numpy(tensors[op[key]].astype(np.float32))

    def weight() -> Tensor:
        return torch.from_numpy(dense_weight(tensors, op["weight"], op.get("shape")))

    match op["op"]:
        case "conv2d":
            filters = op.get("stride") or 1, op.get("padding") or 0, op.get("dilation") or 1, op.get("groups") or 1
            made = F.conv2d(x[0], weight(), stored("bias"), *filters)
        case "linear":
            made = F.linear(x[0], weight(), stored("bias"))
        case "add":
            made = x[0] + x[1]
        case "mul":
            made = x[0] * x[1]
        case "concat":
            is_flat = any(each.ndim == 2 for each in x)  # others then have one pixel
            made = torch.cat([each.flatten(1) for each in x] if is_flat else x, 1)
        case "max_pool" | "avg_pool":
            made = _pool(op, x[0])
        case "global_avg_pool":
            # In double, so that mean and deviation of a constant are exact: `Layers` divides by how little they vary.
            made = x[0].double().mean((2, 3), keepdim=True).float()
        case "global_deviation":
            made = x[0].double().std((2, 3), correction=0, keepdim=True).float()
        case "flatten":
            made = x[0].flatten(1)
        case "affine":
            scale, shift = (stored(key).view(-1, *[1] * (x[0].ndim - 2)) for key in ("scale", "shift"))
            made = x[0] * scale + shift
        case "softmax":
            made = x[0].softmax(1)
        case "act":
            made = x[0]
        case _:
            raise ValueError("is not supported")
    kind = op.get("act")
    if kind not in (None, *_ACTIVATIONS):
        raise ValueError(f"the activation '{kind}' is not supported")
    return made if kind is None else getattr(F, kind)(made)


def _pool(op: Mapping[str, Any], x: Tensor) -> Tensor:
    """The largest or mean value of each window; padding adds those of `ceil_mode`, which ONNX counts otherwise."""
    kernel, padding, dilation = op["kernel"], op.get("padding") or [0, 0], op.get("dilation") or [1, 1]
    stride, beyond = op.get("stride") or kernel, []
    for size, k, s, p, d in zip(x.shape[2:], kernel, stride, padding, dilation, strict=True):
        room = size + 2 * p - d * (k - 1) - 1
        # As in PyTorch: the last window begins inside of the image or the padding before it.
        is_added = op.get("ceil_mode") and room % s and (room // s + 1) * s < size + p
        beyond.append(s - room % s if is_added else 0)
    ends = [0, beyond[1], 0, beyond[0]]
    if op["op"] == "max_pool":
        x = F.pad(x, ends, value=-torch.inf) if any(beyond) else x
        return F.max_pool2d(x, kernel, stride, padding, dilation)
    is_counted = op.get("count_include_pad", True)
    if not any(beyond):
        return F.avg_pool2d(x, kernel, stride, padding, count_include_pad=is_counted)
    sides = [padding[1], padding[1], padding[0], padding[0]]
    counts = F.pad(F.pad(torch.ones(1, 1, *x.shape[2:]), sides, value=float(is_counted)), ends)
    return F.avg_pool2d(F.pad(F.pad(x, sides), ends), kernel, stride) / F.avg_pool2d(counts, kernel, stride)


def _sortable(x: Tensor) -> Tensor:
    """A vector with infinity for NaN."""
    return torch.where(x.isnan(), torch.inf, x)


def _extreme(x: Tensor, function: Callable[..., Tensor]) -> Tensor:
    return torch.where(x.isnan().any(1, keepdim=True), torch.nan, function(x, 1, keepdim=True))


def _first_largest(x: Tensor) -> Tensor:
    return _sortable(x).argmax(1, keepdim=True)


def _top(x: Tensor, k: int) -> Tensor:
    """The positions of the k largest values."""
    return _sortable(x).topk(k, 1).indices


def _distances(x: Tensor, table: Tensor) -> Tensor:
    # |x - t|^2 = |x|^2 - 2 x.t + |t|^2 in double: one product instead of N x m x n differences
    squares = x.square().sum(1, keepdim=True) + table.square().sum(1)
    return (x @ (-2 * table).T + squares).clamp(min=0).sqrt()


def _position(x: Tensor, size: int) -> Tensor:
    """The positions, with `size` for those that are not integers from 0 to size - 1."""
    return torch.where((x >= 0) & (x < size) & (x.floor() == x), x, size).long()


def _row(x: Tensor, table: Tensor) -> Tensor:
    beyond = torch.full_like(table[:1], torch.nan)
    return torch.cat([table, beyond])[_position(x, len(table)).squeeze(1)]


def _scatter(x: Tensor, values: Tensor, size: int) -> Tensor:
    x, values = torch.broadcast_tensors(_position(x, size), values)
    return x.new_zeros((x.shape[0], size + 1), dtype=torch.float64).scatter(1, x, values)[:, :size]


def _rank(x: Tensor, table: Tensor) -> Tensor:
    return torch.where(x.isnan(), x, (x[:, :, None] >= table).double().sum(2))


_WITH_TABLE = {
    "matmul": lambda x, table: x.to(table.dtype) @ table.T,
    "distances": _distances,
    "row": _row,
    "rank": _rank,
}
_OPERATIONS: dict[str, Callable[..., Tensor]] = {
    **{name: getattr(torch, name) for name in _POINTWISE},
    **_WITH_TABLE,
    "not": lambda x: x == 0,
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
    "sum": lambda x: x.sum(1, keepdim=True),
    "mean": lambda x: x.mean(1, keepdim=True),
    "norm": lambda x: x.square().sum(1, keepdim=True).sqrt(),
    "amax": lambda x: _extreme(x, torch.amax),
    "amin": lambda x: _extreme(x, torch.amin),
    "argmax": _first_largest,
    "softmax": lambda x: x.softmax(1),
    "logsumexp": lambda x: x.logsumexp(1, keepdim=True),
    "log_softmax": lambda x: x - x.logsumexp(1, keepdim=True),  # LogSoftmax of ONNX Runtime loses NaN
    "topk": lambda x, k: x.gather(1, _top(x, k)),
    "topk_index": _top,
    "slice": lambda x, start, end: x[:, start:end],
    "concat": lambda *parts: torch.cat(parts, 1),
    "scatter": _scatter,
}
