"""The network of a `.moon` file as nodes of an ONNX graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.export.onnx_builder import Builder
from moon.export.reading import dense_weight

Op = Mapping[str, Any]


@dataclass(frozen=True)
class Value:
    """A value of the graph and the shape of its part for one image, (C, H, W), or (C,) for a vector."""

    name: str
    shape: tuple[int, ...]


def add_network(
    builder: Builder, description: Mapping[str, Any], tensors: Mapping[str, NDArray], x: str
) -> list[Value]:
    """Add the network, and return the logits and the features. `x` names the normalised images, (N, C, H, W).

    Raises a ValueError if an operation is not supported, or the file does not fit together.
    """
    network = _Network(builder, tensors)
    values = {0: Value(x, tuple(description["input"]))}
    for index, op in enumerate(description["graph"]):
        try:
            if op["out"] in values:
                raise ValueError(f"tensor {op['out']} is computed twice")
            values[op["out"]] = network.add(op, [values[number] for number in op["in"]])
        except KeyError as error:
            raise ValueError(f"operation {index} ({op['op']}): there is no {error}") from None
        except ValueError as error:
            raise ValueError(f"operation {index} ({op['op']}): {error}") from None
    outputs = description["outputs"]
    return [network.vector(values[outputs[name]]) for name in ("logits", "features")]


class _Network:
    """Adds operations one by one."""

    def __init__(self, builder: Builder, tensors: Mapping[str, NDArray]) -> None:
        self._builder, self._tensors = builder, tensors

    def add(self, op: Op, inputs: list[Value]) -> Value:
        """The result of an operation."""
        if len(inputs) != (2 if op["op"] in ("add", "mul") else 1) and op["op"] != "concat":
            raise ValueError(f"has {len(inputs)} inputs")
        match op["op"]:
            case "conv2d":
                made = self._conv2d(op, self._maps(inputs[0]))
            case "linear":
                made = self._linear(op, self.vector(inputs[0]))
            case "add" | "mul" | "concat":
                made = self._joined(op["op"], inputs)
            case "max_pool" | "avg_pool":
                made = self._pool(op, self._maps(inputs[0]))
            case "global_avg_pool":
                x = self._maps(inputs[0])
                made = Value(self._builder.add("GlobalAveragePool", x.name), (x.shape[0], 1, 1))
            case "flatten":
                made = self.vector(inputs[0])
            case "affine":
                made = self._affine(op, inputs[0])
            case "softmax":
                made = self._activated(inputs[0], "softmax")
            case "act":
                made = inputs[0]  # what is activated below
            case _:
                raise ValueError("is not supported")
        return self._activated(made, op.get("act"))

    def vector(self, x: Value) -> Value:
        """The values of an image in one dimension."""
        if len(x.shape) == 1:
            return x
        return Value(self._builder.add("Flatten", x.name, axis=1), (prod(x.shape),))

    def _maps(self, x: Value) -> Value:
        """The values of an image in three dimensions."""
        if len(x.shape) == 3:
            return x
        axes = self._builder.constant([2, 3], np.int64)
        return Value(self._builder.add("Unsqueeze", x.name, axes), (*x.shape, 1, 1))

    def _vector_of(self, name: str, size: int) -> NDArray[np.float32]:
        """A tensor of the file with a value per channel."""
        stored = self._tensors[name]
        if stored.shape != (size,) or stored.dtype not in (np.float16, np.float32):
            raise ValueError(f"'{name}' must have {size} values of type F16 or F32")
        return stored.astype(np.float32)

    def _constant(self, name: str, values: NDArray[np.float32]) -> str:
        return self._builder.constant(values, np.float32, f"network.{name}")

    def _weights(self, op: Op, dimensions: int) -> tuple[list[str], tuple[int, ...]]:
        """The constants of the weight and of the bias, if there is one, and the weight's shape."""
        name = op["weight"]
        weight = dense_weight(self._tensors, name, op.get("shape"))
        if weight.ndim != dimensions:
            raise ValueError(f"'{name}' must have {dimensions} dimensions, not {weight.ndim}")
        names = [self._constant(name, weight)]
        if op.get("bias") is not None:
            names.append(self._constant(op["bias"], self._vector_of(op["bias"], len(weight))))
        return names, weight.shape

    def _conv2d(self, op: Op, x: Value) -> Value:
        weights, shape = self._weights(op, 4)
        groups = op.get("groups") or 1
        if shape[1] * groups != x.shape[0] or shape[0] % groups:
            raise ValueError(f"a weight of shape {shape} in {groups} groups does not fit {x.shape[0]} channels")
        kernel, stride, padding, dilation = shape[2:], *_filter(op)
        sides = [_side(*each) for each in zip(x.shape[1:], kernel, stride, padding, dilation, strict=True)]
        made = self._builder.add(
            "Conv", x.name, *weights, strides=stride, pads=[*padding, *padding], dilations=dilation, group=groups
        )
        return Value(made, (shape[0], *sides))

    def _linear(self, op: Op, x: Value) -> Value:
        weights, shape = self._weights(op, 2)
        if shape[1:] != x.shape:
            raise ValueError(f"a weight for {shape[1]} values does not fit {x.shape[0]}")
        return Value(self._builder.add("Gemm", x.name, *weights, transB=1), shape[:1])

    def _joined(self, kind: str, inputs: list[Value]) -> Value:
        """Sum, product or concatenation."""
        if len({len(x.shape) for x in inputs}) > 1:
            inputs = [self._maps(x) for x in inputs]
        names, shapes = [x.name for x in inputs], [x.shape for x in inputs]
        if kind == "concat":
            if len({shape[1:] for shape in shapes}) > 1:
                raise ValueError("the inputs differ in rows or columns")
            return Value(
                self._builder.add("Concat", *names, axis=1), (sum(shape[0] for shape in shapes), *shapes[0][1:])
            )
        largest = max(shapes, key=prod)
        each = (largest, *([(largest[0], 1, 1)] if kind == "mul" else []))
        if any(shape not in each for shape in shapes):
            raise ValueError(f"the inputs have different shapes, {shapes[0]} and {shapes[1]}")
        return Value(self._builder.add(kind.capitalize(), *names), largest)

    def _pool(self, op: Op, x: Value) -> Value:
        kernel, is_mean = op["kernel"], op["op"] == "avg_pool"
        stride, padding, dilation = _filter(op, kernel)
        if is_mean and dilation != [1, 1]:
            raise ValueError("has no dilation")
        ends, sides = [], []
        for size, k, s, p, d in zip(x.shape[1:], kernel, stride, padding, dilation, strict=True):
            side = _side(size, k, s, p, d)
            # As in PyTorch: the last window begins inside of the image or the padding before it.
            if op.get("ceil_mode") and (size + 2 * p - d * (k - 1) - 1) % s and side * s < size + p:
                side += 1
            sides.append(side)
            ends.append(max(p, (side - 1) * s + d * (k - 1) + 1 - size - p))
        settings: dict[str, Any] = {"kernel_shape": kernel, "strides": stride}
        name = x.name
        if not is_mean:
            settings["dilations"] = dilation
        elif op.get("count_include_pad", True) and any(padding):
            # The padding counts, what ceil_mode adds does not.
            pads = self._builder.constant([0, 0, *padding, 0, 0, *padding], np.int64)
            name = self._builder.add("Pad", name, pads)
            ends, padding = [end - p for end, p in zip(ends, padding, strict=True)], [0, 0]
        made = self._builder.add("AveragePool" if is_mean else "MaxPool", name, pads=[*padding, *ends], **settings)
        return Value(made, (x.shape[0], *sides))

    def _affine(self, op: Op, x: Value) -> Value:
        shape = (x.shape[0], *[1] * (len(x.shape) - 1))
        scale, shift = (
            self._constant(op[key], self._vector_of(op[key], x.shape[0]).reshape(shape)) for key in ("scale", "shift")
        )
        return Value(self._builder.add("Add", self._builder.add("Mul", x.name, scale), shift), x.shape)

    def _activated(self, x: Value, kind: str | None) -> Value:
        """The result of an activation."""
        add = self._builder.add

        def number(value: float) -> str:
            return self._builder.constant(value, np.float32)

        match kind:
            case None | "none":
                return x
            case "relu":
                name = add("Relu", x.name)
            case "relu6":
                name = add("Clip", x.name, number(0), number(6))
            case "sigmoid":
                name = add("Sigmoid", x.name)
            case "silu":
                name = add("Mul", x.name, add("Sigmoid", x.name))
            case "gelu":
                share = add("Add", add("Erf", add("Mul", x.name, number(1 / sqrt(2)))), number(1))
                name = add("Mul", add("Mul", x.name, number(0.5)), share)
            case "hardsigmoid":
                name = add("HardSigmoid", x.name, alpha=1 / 6, beta=0.5)
            case "hardswish":
                name = add("HardSwish", x.name)
            case "softmax":
                name = add("Softmax", x.name, axis=1)
            case _:
                raise ValueError(f"the activation '{kind}' is not supported")
        return Value(name, x.shape)


def _filter(op: Op, stride: list[int] | None = None) -> tuple[list[int], list[int], list[int]]:
    """Stride, padding and dilation of a filter."""
    return op.get("stride") or stride or [1, 1], op.get("padding") or [0, 0], op.get("dilation") or [1, 1]


def _side(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """Rows or columns of the output of a filter."""
    room = size + 2 * padding - dilation * (kernel - 1) - 1
    if room < 0:
        raise ValueError("the filter is larger than the image")
    return room // stride + 1
