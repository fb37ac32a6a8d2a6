"""A detector's program as nodes of an ONNX graph, for a batch of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.export.onnx_builder import Builder

_UNARY = {"neg": "Neg", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt"}
_BINARY = {
    "add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "pow": "Pow", "minimum": "Min", "maximum": "Max",
}  # fmt: skip
_COMPARISONS = {"gt": "Greater", "ge": "GreaterOrEqual", "lt": "Less", "le": "LessOrEqual", "eq": "Equal"}
_ARITY = {"where": 3, "matmul": 2, "distances": 2, "row": 2, "scatter": 2, "rank": 2}
_MOST = 2**20  # values of a vector


@dataclass(frozen=True)
class Vector:
    """A vector of doubles for each image, (N, length); (1, length) if it is the same for all images."""

    name: str
    length: int
    is_constant: bool = False


def add_program(
    builder: Builder, ops: list[dict[str, Any]], tensors: Mapping[str, NDArray], logits: Vector, features: Vector
) -> dict[int, Vector]:
    """Add a program whose tensors 0 and 1 are `logits` and `features`, and return all of its tensors by number.

    Raises a ValueError if an operation is not supported, or the program does not fit together.
    """
    program = _Program(builder, tensors, logits, features)
    for index, op in enumerate(ops):
        try:
            program.add(op)
        except KeyError as error:
            raise ValueError(f"operation {index} of the detector ({op['op']}): there is no {error}") from None
        except ValueError as error:
            raise ValueError(f"operation {index} of the detector ({op['op']}): {error}") from None
    return program.values


def expanded(builder: Builder, x: Vector, length: int, like: str) -> str:
    """A vector of length 1, or one that is the same for all images, as (N, length). `like` has N rows."""
    if x.length == length and not x.is_constant:
        return x.name
    rows = builder.add("Shape", like, start=0, end=1)
    shape = builder.add("Concat", rows, builder.constant([length], np.int64), axis=0)
    return builder.add("Expand", x.name, shape)


def counted(builder: Builder, truth: str, axis: int) -> str:
    """How many values along an axis are true, as double; the axis is removed."""
    numbers = builder.cast(truth, np.float32)  # exact up to 2^24
    total = builder.add("ReduceSum", numbers, builder.constant([axis], np.int64), keepdims=0)
    return builder.cast(total, np.float64)


class _Program:
    """Adds operations one by one."""

    def __init__(self, builder: Builder, tensors: Mapping[str, NDArray], logits: Vector, features: Vector) -> None:
        self.values = {0: logits, 1: features}
        self._builder, self._tensors, self._logits = builder, tensors, logits.name

    def add(self, op: dict[str, Any]) -> None:
        name, given = op["op"], op["in"]
        if op["out"] in self.values:
            raise ValueError(f"tensor {op['out']} is computed twice")
        arity = 2 if name in _BINARY or name in _COMPARISONS or name == "ne" else _ARITY.get(name, 1)
        if len(given) != arity and name != "concat":
            raise ValueError(f"needs {arity} operands, not {len(given)}")
        handler: Callable[..., Vector] | None = getattr(self, f"_op_{name}", None)
        if name in ("matmul", "distances", "row", "rank"):
            assert handler is not None
            made = handler(self._operand(given[0]), self._tensors[given[1]["tensor"]])
        else:
            operands = [self._operand(each) for each in given]
            if handler is not None:
                made = handler(*operands, **{key: op[key] for key in op.keys() - {"op", "in", "out"}})
            else:
                made = self._pointwise(name, operands)
        self.values[op["out"]] = made

    # Parts of operations

    def _operand(self, given: Any) -> Vector:
        if isinstance(given, int):
            return self.values[given]
        if "value" in given:
            return Vector(self._number(float(given["value"])), 1, True)
        stored = self._tensors[given["tensor"]]
        if stored.ndim > 1 or not stored.size or stored.dtype not in (np.float16, np.float32, np.float64):
            raise ValueError(f"'{given['tensor']}' must be a vector of type F16, F32 or F64")
        return Vector(self._builder.constant(stored.reshape(1, -1), np.float64), stored.size, True)

    def _number(self, value: float) -> str:
        return self._builder.constant([[value]], np.float64)

    def _node(self, kind: str, *operands: Vector, length: int | None = None, **attributes: Any) -> Vector:
        """The result of a node whose operands are vectors."""
        if length is None:
            lengths = {x.length for x in operands} - {1} or {1}
            if len(lengths) > 1:
                raise ValueError(f"vectors of {' and '.join(map(str, sorted(lengths)))} values do not fit together")
            (length,) = lengths
        name = self._builder.add(kind, *(x.name for x in operands), **attributes)
        return Vector(name, length, all(x.is_constant for x in operands))

    def _with(self, x: Vector, name: str, length: int | None = None) -> Vector:
        """A vector computed from x alone."""
        return Vector(name, x.length if length is None else length, x.is_constant)

    def _as_numbers(self, x: Vector) -> Vector:
        """True and false as 1 and 0."""
        return self._with(x, self._builder.cast(x.name, np.float64))

    def _as_truth(self, x: Vector) -> Vector:
        """Whether each number is not 0."""
        return self._with(x, self._builder.cast(x.name, np.bool_))

    def _sum(self, x: Vector) -> Vector:
        return self._with(x, self._builder.add("ReduceSum", x.name, self._axis()), 1)

    def _axis(self, number: int = 1) -> str:
        return self._builder.constant([number], np.int64)

    def _sortable(self, x: Vector) -> Vector:
        """A vector with infinity for NaN, which the order of ONNX does not define."""
        return self._node("Where", self._node("IsNaN", x), Vector(self._number(np.inf), 1, True), x)

    def _extreme(self, kind: str, x: Vector) -> Vector:
        """The largest or smallest value; NaN if one is NaN, which ONNX Runtime would leave out."""
        found = self._node(kind, x, length=1, axes=[1])
        has_nan = self._as_truth(self._sum(self._as_numbers(self._node("IsNaN", x))))
        return self._node("Where", has_nan, Vector(self._number(np.nan), 1, True), found)

    def _top(self, x: Vector, k: int) -> Vector:
        """The positions of the k largest values, int64."""
        if not isinstance(k, int) or not 1 <= k <= x.length:
            raise ValueError(f"k must be an integer from 1 to {x.length}")
        _, positions = self._builder.add_several(
            "TopK", 2, self._sortable(x).name, self._builder.constant([k], np.int64), axis=1
        )
        return self._with(x, positions, k)

    def _table(self, x: Vector, table: NDArray) -> NDArray:
        if table.ndim != 2 or not table.size or table.dtype not in (np.float16, np.float32, np.float64):
            raise ValueError("the table must have two dimensions and be of type F16, F32 or F64")
        if table.shape[1] != x.length:
            raise ValueError(f"a table with rows of {table.shape[1]} values does not fit {x.length}")
        return table

    def _position(self, x: Vector, size: int) -> Vector:
        """The positions as int64, with `size` for those that are not integers from 0 to size - 1."""
        limits = [Vector(self._number(value), 1, True) for value in (0, size)]
        inside = self._node("And", self._node("GreaterOrEqual", x, limits[0]), self._node("Less", x, limits[1]))
        is_valid = self._node("And", inside, self._node("Equal", self._node("Floor", x), x))
        return self._with(x, self._builder.cast(self._node("Where", is_valid, x, limits[1]).name, np.int64))

    # Operations

    def _pointwise(self, name: str, operands: list[Vector]) -> Vector:
        if name in _UNARY or name in _BINARY:
            return self._node((_UNARY | _BINARY)[name], *operands)
        if name in _COMPARISONS:
            return self._as_numbers(self._node(_COMPARISONS[name], *operands))
        raise ValueError("is not supported")

    def _op_square(self, x: Vector) -> Vector:
        return self._node("Mul", x, x)

    def _op_isnan(self, x: Vector) -> Vector:
        return self._as_numbers(self._node("IsNaN", x))

    def _op_not(self, x: Vector) -> Vector:
        return self._as_numbers(self._node("Not", self._as_truth(x)))

    def _op_ne(self, a: Vector, b: Vector) -> Vector:
        return self._as_numbers(self._node("Not", self._node("Equal", a, b)))

    def _op_where(self, condition: Vector, a: Vector, b: Vector) -> Vector:
        return self._node("Where", self._as_truth(condition), a, b)

    def _op_sum(self, x: Vector) -> Vector:
        return self._sum(x)

    def _op_mean(self, x: Vector) -> Vector:
        return self._node("ReduceMean", x, length=1, axes=[1])

    def _op_norm(self, x: Vector) -> Vector:
        return self._node("Sqrt", self._sum(self._op_square(x)))

    def _op_amax(self, x: Vector) -> Vector:
        return self._extreme("ReduceMax", x)

    def _op_amin(self, x: Vector) -> Vector:
        return self._extreme("ReduceMin", x)

    def _op_argmax(self, x: Vector) -> Vector:
        return self._as_numbers(self._node("ArgMax", self._sortable(x), length=1, axis=1))

    def _op_softmax(self, x: Vector) -> Vector:
        return self._node("Softmax", x, axis=1)

    def _op_logsumexp(self, x: Vector) -> Vector:
        return self._node("ReduceLogSumExp", x, length=1, axes=[1])

    def _op_log_softmax(self, x: Vector) -> Vector:
        return self._node("Sub", x, self._op_logsumexp(x))  # LogSoftmax of ONNX Runtime loses NaN

    def _op_topk(self, x: Vector, k: int) -> Vector:
        positions = self._top(x, k)
        return self._with(x, self._builder.add("GatherElements", x.name, positions.name, axis=1), k)

    def _op_topk_index(self, x: Vector, k: int) -> Vector:
        return self._as_numbers(self._top(x, k))

    def _op_slice(self, x: Vector, start: int, end: int) -> Vector:
        if not 0 <= start < end <= x.length:
            raise ValueError(f"{start} to {end} is not a part of {x.length} values")
        name = self._builder.add("Slice", x.name, self._axis(start), self._axis(end), self._axis())
        return self._with(x, name, end - start)

    def _op_concat(self, *parts: Vector) -> Vector:
        length = sum(part.length for part in parts)
        if not 1 <= length <= _MOST:
            raise ValueError(f"the result has {length} values, not 1 to {_MOST}")
        if all(part.is_constant for part in parts):
            return self._node("Concat", *parts, length=length, axis=1)
        names = [expanded(self._builder, part, part.length, self._logits) for part in parts]
        return Vector(self._builder.add("Concat", *names, axis=1), length)

    def _op_matmul(self, x: Vector, table: NDArray) -> Vector:
        table = self._table(x, table)
        kind = np.float64 if table.dtype == np.float64 else np.float32
        name = x.name if kind == np.float64 else self._builder.cast(x.name, kind)
        product = self._builder.add("Gemm", name, self._builder.constant(table, kind), transB=1)
        return self._with(x, product if kind == np.float64 else self._builder.cast(product, np.float64), len(table))

    def _op_distances(self, x: Vector, table: NDArray) -> Vector:
        # |x - t|^2 = |x|^2 - 2 x.t + |t|^2 in double: one product instead of N x m x n differences
        table = self._table(x, table).astype(np.float64)
        product = self._builder.add("Gemm", x.name, self._builder.constant(-2 * table, np.float64), transB=1)
        squares = Vector(self._builder.constant((table**2).sum(1)[None], np.float64), len(table), True)
        total = self._node(
            "Add", self._node("Add", self._with(x, product, len(table)), squares), self._sum(self._op_square(x))
        )
        return self._node("Sqrt", self._node("Max", total, Vector(self._number(0), 1, True)))

    def _op_row(self, x: Vector, table: NDArray) -> Vector:
        if x.length != 1 or table.ndim != 2 or not table.size:
            raise ValueError("needs one position and a table of two dimensions")
        position = self._position(x, len(table))
        rows = np.concatenate([table.astype(np.float64), np.full((1, table.shape[1]), np.nan)])
        index = self._builder.add("Squeeze", position.name, self._axis())
        name = self._builder.add("Gather", self._builder.constant(rows, np.float64), index, axis=0)
        return self._with(x, name, table.shape[1])

    def _op_scatter(self, positions: Vector, values: Vector, size: int) -> Vector:
        if not isinstance(size, int) or not 1 <= size <= _MOST:
            raise ValueError(f"size must be an integer from 1 to {_MOST}")
        index, length = self._position(positions, size), max(positions.length, values.length)
        if {positions.length, values.length} - {1, length}:
            raise ValueError(f"{values.length} values do not fit {positions.length} positions")
        names = [expanded(self._builder, each, length, self._logits) for each in (index, values)]
        # Positions out of range go to one value more, which is cut off.
        zeros = expanded(self._builder, Vector(self._number(0), 1, True), size + 1, self._logits)
        made = Vector(self._builder.add("ScatterElements", zeros, *names, axis=1), size + 1)
        return self._op_slice(made, 0, size)

    def _op_rank(self, x: Vector, table: NDArray) -> Vector:
        if table.ndim != 1 or not table.size:
            raise ValueError("needs a vector to compare with")
        column = self._builder.add("Unsqueeze", x.name, self._axis(2))
        entries = self._builder.constant(table, np.float64)
        count = counted(self._builder, self._builder.add("GreaterOrEqual", column, entries), 2)
        return self._node("Where", self._node("IsNaN", x), x, self._with(x, count))
