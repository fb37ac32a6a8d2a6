"""A program of operations on vectors, as plain data, and how it is built operation by operation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Operand = int | dict[str, Any]  # the number of a vector, or a constant: {"tensor": name} or {"value": number}


@dataclass
class Program:
    """Operations on vectors of one image, as plain values. Vector 0 is the logits, vector 1 the features.

    `tensors` are the constants by name, `output` is the number of the score.
    """

    ops: list[dict[str, Any]] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    output: int = 0


@dataclass(frozen=True)
class Vector:
    """A value for each image: its number, or a constant, and its length.

    Operations on single elements repeat a value of length 1, so that `is_filled` may be False: there is one value for
    all places.
    """

    operand: Operand
    length: int
    is_filled: bool = True


class ProgramBuilder:
    """Adds operations to a program."""

    def __init__(self) -> None:
        self.program = Program()

    def add(self, name: str, *inputs: Any, length: int, table: Tensor | None = None, **settings: Any) -> Vector:
        """Add an operation on vectors, numbers and constant tensors; its result has the given length.

        `table` is a constant that is the last input, whatever its size.
        """
        number = len(self.program.ops) + 2
        operands = [self._operand(x) for x in inputs] + ([] if table is None else [{"tensor": self._keep(table)}])
        self.program.ops.append({"op": name, "in": operands, "out": number, **settings})
        return Vector(number, length)

    def filled(self, vector: Any) -> Any:
        """A vector with a value for each place, for operations that need them."""
        if isinstance(vector, Tensor) or vector.is_filled:
            return vector
        return self.add("add", vector, torch.zeros(vector.length), length=vector.length)

    def _operand(self, value: Any) -> Operand:
        """How an operation refers to a vector, a number or a constant tensor."""
        if isinstance(value, Vector):
            return value.operand
        if isinstance(value, Tensor) and value.numel() > 1:
            return {"tensor": self._keep(value.flatten())}
        number = float(value)
        return {"value": number if abs(number) < float("inf") else str(number)}  # JSON has no inf and no nan

    def _keep(self, tensor: Tensor) -> str:
        """The name of a constant; equal ones are stored once."""
        tensor = (tensor if tensor.is_floating_point() else tensor.double()).contiguous()
        for name, other in self.program.tensors.items():
            if other.dtype == tensor.dtype and torch.equal(other, tensor):
                return name
        name = f"detector.{len(self.program.tensors)}"
        self.program.tensors[name] = tensor
        return name
