"""Convert an exported score into operations on vectors, node by node. `runtime/README.md` lists the operations.

What does not depend on the image is computed here and becomes a constant.
"""

from __future__ import annotations

import operator
from dataclasses import replace
from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node

from moon.export.vector_program import Program, ProgramBuilder, Vector

IMAGES = 7  # traced at once
_SAME = (
    "_to_copy", "alias", "clone", "detach", "squeeze", "unsqueeze", "view", "reshape", "_unsafe_view", "permute",
    "contiguous",
)  # fmt: skip
_UNARY = {"neg": "neg", "abs": "abs", "exp": "exp", "log": "log", "sqrt": "sqrt", "isnan": "isnan"}
_UNARY |= {"bitwise_not": "not", "logical_not": "not"}
_BINARY = ("add", "sub", "mul", "div", "pow", "minimum", "maximum", "gt", "ge", "lt", "le", "eq", "ne")
_REDUCTIONS = {"sum": "sum", "mean": "mean", "amax": "amax", "amin": "amin", "argmax": "argmax"}
_REDUCTIONS |= {"linalg_vector_norm": "norm", "logsumexp": "logsumexp"}
_ROWWISE = {"_softmax": "softmax", "_log_softmax": "log_softmax"}


def program_of(exported: ExportedProgram, name: str) -> Program:
    """Convert an exported score of `IMAGES` images, from logits and features, to the program of one image.

    Raises a ValueError that names the operation if one is not supported.
    """
    return _Conversion(exported, name).program


class _Conversion:
    """Converts an exported score node by node; what does not depend on the image is computed."""

    def __init__(self, exported: ExportedProgram, name: str) -> None:
        signature = exported.graph_signature
        names = {**signature.inputs_to_buffers, **signature.inputs_to_lifted_tensor_constants}
        constants = {**exported.state_dict, **exported.constants}
        self._builder, self._name = ProgramBuilder(), name
        self._values: dict[Node, Any] = {}  # a Vector, a tuple of them, or a constant
        inputs = iter((0, 1))
        for node in exported.graph.nodes:
            if node.op == "placeholder" and node.name in names:
                self._values[node] = constants[names[node.name]].detach().cpu()
            elif node.op == "placeholder":
                self._values[node] = Vector(next(inputs), node.meta["val"].shape[1])
            elif node.op == "output":
                self._finish(node.args[0][0])
            elif node.target is torch.ops.aten._assert_tensor_metadata.default:
                continue
            else:
                self._values[node] = self._converted(node)

    @property
    def program(self) -> Program:
        return self._builder.program

    def _finish(self, node: Node) -> None:
        score = self._values[node]
        if not isinstance(score, Vector) or score.length != 1 or not isinstance(score.operand, int):
            raise ValueError(f"the score of {self._name} must be one number per image that depends on the image")
        self.program.output = score.operand

    def _converted(self, node: Node) -> Any:
        arguments = [self._known(argument) for argument in node.args]
        if node.target is operator.getitem:
            return arguments[0][arguments[1]]
        if not any(isinstance(value, Vector) for value in _flat(arguments)):
            target: Any = node.target
            return target(*arguments, **{key: self._known(value) for key, value in node.kwargs.items()})
        name = str(getattr(node.target, "__name__", node.target)).partition(".")[0]
        result = self._translated(name, node, arguments)
        self._check(node, result)
        return result

    def _known(self, argument: Any) -> Any:
        if isinstance(argument, (list, tuple)):
            return [self._known(item) for item in argument]
        return self._values[argument] if isinstance(argument, Node) else argument

    def _check(self, node: Node, result: Any) -> None:
        """A value must have the first dimension of the images, and what belongs to one image must be a vector."""
        shapes = [value.shape for value in _flat([node.meta["val"]]) if isinstance(value, Tensor)]
        for shape, vector in zip(shapes, _flat([result]), strict=True):
            if shape[:1] != (IMAGES,):
                self._fail(node, "mixes the images of a batch")
            if prod(shape[1:]) != vector.length or sum(size != 1 for size in shape[1:]) > 1:
                self._fail(node, f"computes more than a vector for each image, {tuple(shape[1:])}")

    def _fail(self, node: Node, what: str) -> NoReturn:
        raise ValueError(f"the score of {self._name} cannot be packed: '{node.target}' {what}")

    def _translated(self, name: str, node: Node, given: list[Any]) -> Any:
        """The vectors that a node computes."""
        handler: Any = getattr(self, f"_op_{name}", None)
        if name in _SAME:
            return given[0]
        if name == "pow" and not isinstance(given[1], (Tensor, Vector)) and given[1] in (2, 0.5):
            return self._elementwise(node, "square" if given[1] == 2 else "sqrt", given[0])
        if name in _UNARY:
            return self._elementwise(node, _UNARY[name], given[0])
        if name in _BINARY:
            if node.kwargs and node.kwargs.get("alpha", 1) != 1:
                self._fail(node, "with alpha is not supported")
            return self._elementwise(node, name, *given[:2])
        if name in _REDUCTIONS or name in _ROWWISE:
            at = 2 if name == "linalg_vector_norm" else 1
            dims = _flat([given[at]]) if len(given) > at else []  # none given: all
            if [dim % len(node.all_input_nodes[0].meta["val"].shape) for dim in dims] != [1]:
                self._fail(node, "must be over the dimension 1")
            if name == "linalg_vector_norm" and given[1] != 2:
                self._fail(node, "is only supported for the Euclidean norm")
            kind = _REDUCTIONS.get(name) or _ROWWISE[name]
            whole = self._builder.filled(given[0])
            return self._builder.add(kind, whole, length=1 if name in _REDUCTIONS else whole.length)
        if handler is None:
            self._fail(node, "is not supported")
        return handler(node, *given, **node.kwargs)

    def _one_row(self, node: Node, constant: Tensor) -> Tensor:
        """The part of a constant that belongs to one image; it must be the same for each image."""
        if not (constant == constant[:1]).all():
            self._fail(node, "uses a constant that depends on the position in the batch")
        return constant[0].flatten()

    def _elementwise(self, node: Node, name: str, *inputs: Any) -> Vector:
        shape = node.meta["val"].shape
        inputs = tuple(
            self._one_row(node, x.broadcast_to(shape)) if isinstance(x, Tensor) and x.numel() > 1 else x for x in inputs
        )
        made = self._builder.add(name, *inputs, length=prod(node.meta["val"].shape[1:]))
        return replace(made, is_filled=made.length in map(_places, inputs))

    def _with_table(self, node: Node, name: str, vector: Any, table: Any, length: int) -> Vector:
        if not isinstance(table, Tensor) or table.ndim != 2:
            self._fail(node, "is only supported for a constant matrix")
        return self._builder.add(name, vector, length=length, table=table)

    def _op_where(self, node: Node, condition: Any, yes: Any, no: Any) -> Vector:
        return self._elementwise(node, "where", condition, yes, no)

    def _op_clamp(self, node: Node, x: Vector, low: Any = None, high: Any = None) -> Vector:
        for name, bound in (("maximum", low), ("minimum", high)):
            x = x if bound is None else self._elementwise(node, name, x, bound)
        return x

    def _op_rsqrt(self, node: Node, x: Vector) -> Vector:
        return self._elementwise(node, "div", 1.0, self._elementwise(node, "sqrt", x))

    def _op_reciprocal(self, node: Node, x: Vector) -> Vector:
        return self._elementwise(node, "div", 1.0, x)

    def _op_expand(self, node: Node, x: Vector, *_: Any) -> Vector:
        length = prod(node.meta["val"].shape[1:])
        return x if length == x.length else replace(x, length=length, is_filled=False)

    def _op_full_like(self, node: Node, x: Vector, value: float, **_: Any) -> Vector:
        return Vector({"value": float(value)}, x.length, is_filled=False)

    def _op_slice(self, node: Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Vector:
        if dim != 1 or step != 1:
            self._fail(node, "is only supported along the dimension 1 with step 1")
        start, end, _ = slice(start, end).indices(x.length)
        if (start, end) == (0, x.length):
            return x
        return self._builder.add("slice", self._builder.filled(x), length=end - start, start=start, end=end)

    def _op_select(self, node: Node, x: Vector, dim: int, index: int) -> Vector:
        if dim != 1:
            self._fail(node, "is only supported along the dimension 1")
        index %= x.length
        return self._builder.add("slice", self._builder.filled(x), length=1, start=index, end=index + 1)

    def _op_split_with_sizes(self, node: Node, x: Vector, sizes: list[int], dim: int = 0) -> tuple[Vector, ...]:
        if dim == 0:
            if sizes != [IMAGES]:
                self._fail(node, "mixes the images of a batch")
            return (x,)
        ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
        return tuple(self._op_slice(node, x, 1, end - n, end) for n, end in zip(sizes, ends, strict=True))

    def _op_cat(self, node: Node, parts: list[Any], dim: int = 0) -> Vector:
        if len(parts) == 1:
            return parts[0]
        filled = [self._builder.filled(p) if isinstance(p, Vector) else self._one_row(node, p) for p in parts]
        return self._builder.add("concat", *filled, length=sum(map(_places, filled)))

    def _op_topk(
        self, node: Node, x: Vector, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
    ) -> tuple[Vector, Vector]:
        if dim not in (1, -1) or x.length == 1:
            self._fail(node, "must be over the dimension 1")
        x = self._builder.filled(x) if largest else self._builder.add("neg", self._builder.filled(x), length=x.length)
        values = self._builder.add("topk", x, length=k, k=k)
        if not largest:
            values = self._builder.add("neg", values, length=k)
        return values, self._builder.add("topk_index", x, length=k, k=k)

    def _op_sort(self, node: Node, x: Vector, *rest: Any, **settings: Any) -> tuple[Vector, Vector]:
        """aten::sort(x, dim, descending), and aten::sort.stable, whose dim and descending are keywords."""
        dim, descending = (*rest, *((-1, False)[len(rest) :]))
        dim, descending = settings.get("dim", dim), settings.get("descending", descending)
        return self._op_topk(node, x, x.length, dim, largest=descending)

    def _op_mm(self, node: Node, x: Any, table: Any) -> Vector:
        if not isinstance(x, Vector) or not isinstance(table, Tensor):
            self._fail(node, "is only supported for a vector and a constant matrix")
        return self._with_table(node, "matmul", self._builder.filled(x), table.T, table.shape[1])

    def _op_addmm(self, node: Node, bias: Any, x: Any, table: Any) -> Vector:
        return self._elementwise(node, "add", self._op_mm(node, x, table), bias)

    def _op__cdist_forward(self, node: Node, x: Any, table: Any, p: float = 2.0, *_: Any) -> Vector:
        if not isinstance(x, Vector) or p != 2:
            self._fail(node, "is only supported for Euclidean distances to constants")
        return self._with_table(node, "distances", self._builder.filled(x), table, len(table))

    def _op_index(self, node: Node, table: Any, indices: list[Any]) -> Vector:
        if isinstance(table, Vector) or len(indices) != 1:
            self._fail(node, "is only supported for rows of a constant")
        rows = table.reshape(len(table), -1)
        return self._with_table(node, "row", indices[0], rows, rows.shape[1])

    def _op_scatter(self, node: Node, into: Any, dim: int, positions: Vector, values: Any) -> Vector:
        if dim != 1 or not isinstance(into, Vector) or into.operand != {"value": 0.0}:
            self._fail(node, "is only supported into zeros along the dimension 1")
        values = self._builder.filled(values) if isinstance(values, Vector) else self._one_row(node, values)
        return self._builder.add("scatter", positions, values, length=into.length, size=into.length)

    def _op_searchsorted(self, node: Node, table: Any, x: Any, out_int32: bool = False, right: bool = False) -> Vector:
        if not isinstance(table, Tensor) or table.ndim != 1 or not right:
            self._fail(node, "is only supported for a constant vector with right=True")
        return self._builder.add("rank", x, length=x.length, table=table)


def _places(value: Any) -> int:
    """How many values an operand has."""
    if isinstance(value, Vector):
        return value.length if value.is_filled else 1
    return value.numel() if isinstance(value, Tensor) else 1


def _flat(values: Any) -> list[Any]:
    """The items of nested lists and tuples."""
    if isinstance(values, (list, tuple)):
        return [item for value in values for item in _flat(value)]
    return [values]
