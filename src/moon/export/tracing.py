"""Trace a network with `torch.export` and convert it into a graph of plain data, node by node."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.fx import Node

from moon.evidence.layers import chosen
from moon.export.graph import Graph, Op, fold
from moon.suggest import first_line

_ACTIVATIONS = ("relu", "relu6", "silu", "gelu", "hardswish", "hardsigmoid", "sigmoid")
_SAME = ("dropout", "contiguous", "clone", "detach", "to", "alias", "identity", "feature_dropout")


def trace(model: nn.Module, shape: tuple[int, ...], layers: bool = False) -> Graph:
    """Trace a network in evaluation mode, whose output is that of a Linear layer, with `torch.export` and convert it.

    BatchNorm is folded into the convolution before it, where there is one. `shape` is that of an input, (C, H, W). With
    `layers` the output `features` ends with the statistics of inner layers, `Evidence.layers`. Raises a ValueError that
    names what cannot be traced or is not supported.
    """
    if model.training:
        raise ValueError(f"{type(model).__name__} is in training mode; call model.eval() first")
    parameter = next(model.parameters())
    try:
        # Two images, so that the number of images differs from sizes of 1.
        program = export(model, (torch.zeros(2, *shape, device=parameter.device),))
    except Exception as error:  # tracing runs the model's own code, which may raise anything
        raise ValueError(f"{type(model).__name__} cannot be traced ({first_line(error)})") from error
    return _Conversion(program, shape, layers).graph


class _Conversion:
    """Converts an exported program node by node."""

    def __init__(self, program: ExportedProgram, shape: tuple[int, ...], layers: bool) -> None:
        signature = program.graph_signature
        names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
        constants = {**program.state_dict, **program.constants}
        names |= signature.inputs_to_lifted_tensor_constants
        self.graph = Graph(shape)
        self._constants = {node: constants[name].detach() for node, name in names.items()}
        self._names, self._layers = names, layers
        self._tensors: dict[Node, int] = {}  # the number of each node's tensor
        self._made_by: dict[int, Op] = {}
        for node in program.graph.nodes:
            self._convert(node)

    def _convert(self, node: Node) -> None:
        if node.op == "placeholder":
            if node.name not in self._names:
                self._tensors[node] = 0
        elif node.op == "output":
            self._finish(node)
        elif node.target is not operator.getitem or node.args[0] in self._tensors:
            self._tensors[node] = self._converted(node)

    def _converted(self, node: Node) -> int:
        """The number of the tensor that a node computes."""
        name = str(getattr(node.target, "__name__", node.target)).partition(".")[0].rstrip("_")
        if name in _SAME:
            if "dropout" in name and node.args[2]:
                raise ValueError(f"{_where(node)}: dropout is active although the network is in evaluation mode")
            return self._number(node.args[0])
        handler: Callable[..., int] | None = getattr(self, f"_{name}", None)
        if name in _ACTIVATIONS:
            return self._activation(node, name)
        if handler is None:
            raise ValueError(f"{_where(node)}: the operator '{node.target}' is not supported")
        try:
            bound = inspect.signature(handler).bind(node, *node.args, **node.kwargs)
        except TypeError:
            raise ValueError(f"{_where(node)}: '{node.target}' with these arguments is not supported") from None
        return handler(*bound.args, **bound.kwargs)

    def _number(self, argument: Any) -> int:
        if not isinstance(argument, Node) or argument not in self._tensors:
            raise ValueError(f"'{argument}' is not computed from the input, which is not supported")
        return self._tensors[argument]

    def _weight(self, argument: Any) -> Tensor | None:
        return self._constants[argument.name].float() if isinstance(argument, Node) else None

    def _add_op(self, name: str, inputs: list[int], **settings: Any) -> int:
        number = len(self.graph.ops) + 1
        op = {"op": name, "in": inputs, "out": number, **settings, "act": None}
        self.graph.ops.append(op)
        self._made_by[number] = op
        return number

    def _keep(self, name: str, tensor: Tensor | None) -> str | None:
        """Store a weight; one that is used twice is stored for each use, because BatchNorm may be folded into it."""
        if tensor is None:
            return None
        if name in self.graph.weights:
            name = f"{name}.{len(self.graph.ops) + 1}"
        self.graph.weights[name] = tensor.contiguous().cpu()
        return name

    def _kept(self, weight: Node, bias: Any) -> dict[str, str | None]:
        """Store weight and bias of a layer; their names are settings of the operator."""
        name = self._names[weight.name].removesuffix(".weight")
        parts = {"weight": self._weight(weight), "bias": self._weight(bias)}
        return {part: self._keep(f"{name}.{part}", tensor) for part, tensor in parts.items()}

    def _conv2d(
        self, node: Node, x: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0,
        dilation: Any = 1, groups: int = 1,
    ) -> int:  # fmt: skip
        if isinstance(padding, str):
            raise ValueError(f"{_where(node)}: padding='{padding}' is not supported; give numbers")
        settings = {"stride": _pair(stride), "padding": _pair(padding), "dilation": _pair(dilation), "groups": groups}
        return self._add_op("conv2d", [self._number(x)], **self._kept(weight, bias), **settings)

    def _linear(self, node: Node, x: Node, weight: Node, bias: Any = None) -> int:
        return self._add_op("linear", [self._number(x)], **self._kept(weight, bias))

    def _batch_norm(
        self, node: Node, x: Node, weight: Any, bias: Any, mean: Node, variance: Node, training: bool,
        momentum: float, eps: float, cudnn: bool = False,
    ) -> int:  # fmt: skip
        if training:
            raise ValueError(f"{_where(node)}: BatchNorm uses the statistics of a batch, which is not supported")
        center, spread, scale, shift = (self._weight(part) for part in (mean, variance, weight, bias))
        assert center is not None
        assert spread is not None
        factor = (spread.double() + eps).rsqrt() * (1.0 if scale is None else scale.double())
        offset = (0.0 if shift is None else shift.double()) - center.double() * factor
        number, name = self._number(x), self._names[mean.name].removesuffix(".running_mean")
        kept = self._keep(f"{name}.scale", factor.float()), self._keep(f"{name}.shift", offset.float())
        return self._add_op("affine", [number], scale=kept[0], shift=kept[1])

    def _activation(self, node: Node, name: str) -> int:
        if name == "gelu" and node.kwargs.get("approximate", "none") != "none":
            raise ValueError(f"{_where(node)}: gelu with an approximation is not supported")
        number = self._add_op("act", [self._number(node.args[0])])
        self._made_by[number]["act"] = name
        return number

    def _softmax(self, node: Node, x: Node, dim: int, dtype: Any = None) -> int:
        if dtype is not None or dim % len(_shape(x)) != 1:
            raise ValueError(f"{_where(node)}: softmax is only supported over the channels")
        return self._add_op("softmax", [self._number(x)])

    def _hardtanh(self, node: Node, x: Node, low: float = -1.0, high: float = 1.0) -> int:
        if (low, high) != (0.0, 6.0):
            raise ValueError(f"{_where(node)}: hardtanh({low}, {high}) is not supported, only ReLU6")
        return self._activation(node, "relu6")

    def _add(self, node: Node, a: Node, b: Node, alpha: float = 1) -> int:
        if alpha != 1 or not (isinstance(a, Node) and isinstance(b, Node)) or _shape(a) != _shape(b):
            raise ValueError(f"{_where(node)}: only tensors of the same shape can be added")
        return self._add_op("add", [self._number(a), self._number(b)])

    def _mul(self, node: Node, a: Node, b: Node) -> int:
        if isinstance(a, Node) and isinstance(b, Node) and _shape(b)[2:] != (1, 1):
            a, b = b, a  # the factor of each channel comes second
        if not (isinstance(a, Node) and isinstance(b, Node)) or _shape(b) not in (_shape(a), (*_shape(a)[:2], 1, 1)):
            raise ValueError(f"{_where(node)}: only tensors of the same shape, or (N, C, 1, 1), can be multiplied")
        return self._add_op("mul", [self._number(a), self._number(b)])

    def _cat(self, node: Node, parts: list[Node], dim: int = 0) -> int:
        if dim not in (1, 1 - len(_shape(parts[0]))):
            raise ValueError(f"{_where(node)}: only channels can be concatenated, not dimension {dim}")
        return self._add_op("concat", [self._number(part) for part in parts])

    def _max_pool2d(
        self, node: Node, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> int:  # fmt: skip
        settings = {"kernel": _pair(kernel), "stride": _pair(stride or kernel), "padding": _pair(padding)}
        settings |= {"dilation": _pair(dilation), "ceil_mode": ceil_mode}
        return self._add_op("max_pool", [self._number(x)], **settings)

    def _avg_pool2d(
        self, node: Node, x: Node, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor: Any = None,
    ) -> int:  # fmt: skip
        if divisor is not None:
            raise ValueError(f"{_where(node)}: average pooling with divisor_override is not supported")
        settings = {"kernel": _pair(kernel), "stride": _pair(stride or kernel), "padding": _pair(padding)}
        settings |= {"ceil_mode": ceil_mode, "count_include_pad": count_include_pad}
        return self._add_op("avg_pool", [self._number(x)], **settings)

    def _adaptive_avg_pool2d(self, node: Node, x: Node, size: Any) -> int:
        source, target = _shape(x)[2:], tuple(_pair(size))
        if target == (1, 1):
            return self._add_op("global_avg_pool", [self._number(x)])
        if any(old % new for old, new in zip(source, target, strict=True)):
            raise ValueError(f"{_where(node)}: pooling from {source} to {target} is not supported")
        kernel = [old // new for old, new in zip(source, target, strict=True)]
        return self._add_op("avg_pool", [self._number(x)], kernel=kernel, stride=kernel, padding=[0, 0])

    def _mean(self, node: Node, x: Node, dims: Any, keepdim: bool = False, **_: Any) -> int:
        if len(_shape(x)) != 4 or sorted(dim % 4 for dim in dims) != [2, 3]:
            raise ValueError(f"{_where(node)}: only a mean over all pixels is supported")
        number = self._add_op("global_avg_pool", [self._number(x)])
        return number if keepdim else self._add_op("flatten", [number])

    def _flatten(self, node: Node, x: Node, *_: Any, **__: Any) -> int:
        before, after = _shape(x), _shape(node)
        if after == before:
            return self._number(x)
        if len(after) != 2 or after[0] != before[0]:
            raise ValueError(f"{_where(node)}: a change of shape from {before} to {after} is not supported")
        return self._add_op("flatten", [self._number(x)])

    _view = _reshape = _squeeze = _flatten

    def _finish(self, node: Node) -> None:
        (outputs,) = node.args
        last = outputs[0] if isinstance(outputs, (tuple, list)) else outputs
        self.graph.logits = self._number(last)
        made = self._made_by.get(self.graph.logits)
        if made is None or made["op"] != "linear" or made["act"] is not None:
            raise ValueError("the output of the network must be that of a Linear layer")
        self.graph.features = made["in"][0]
        if self._layers:
            self._add_statistics()
        fold(self.graph)

    def _add_statistics(self) -> None:
        """Mean and deviation of each channel, directly after the convolutions, so that these need not be kept."""
        ops = self.graph.ops
        convolutions = [op for op in ops if op["op"] == "conv2d"]
        parts, following = [self.graph.features], {}
        for op in (convolutions[place] for place in chosen(len(convolutions))):
            added = [self._add_op(name, [op["out"]]) for name in ("global_avg_pool", "global_deviation")]
            following[op["out"]] = [self._made_by[number] for number in added]
            parts += added
            self.graph.layer_sizes += (2 * len(self.graph.weights[op["weight"]]),)
        self.graph.features = self._add_op("concat", parts)
        *before, last = ops
        statistics = [op for group in following.values() for op in group]
        ops[:] = [each for op in before if op not in statistics for each in (op, *following.get(op["out"], []))]
        ops.append(last)


def _shape(node: Node) -> tuple[int, ...]:
    return tuple(node.meta["val"].shape)


def _pair(value: Any) -> list[int]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * 2 if len(values) == 1 else values


def _where(node: Node) -> str:
    """The module that a node belongs to."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return f"'{stack[-1][0]}'" if stack and stack[-1][0] else "the network"
