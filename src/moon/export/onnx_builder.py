"""Collects the nodes and constants of an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

MOST_BYTES = 2**31 - 2**24  # an ONNX file is limited to 2 GiB; the rest is for nodes and metadata


class Builder:
    """An ONNX graph under construction. Values are referred to by their names."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.constants: list[TensorProto] = []
        self._names: dict[object, str] = {}
        self._bytes = 0

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; return the output's name."""
        return self.add_several(kind, 1, *inputs, **attributes)[0]

    def add_several(self, kind: str, outputs: int, *inputs: str, **attributes: Any) -> Sequence[str]:
        """Add a node with several outputs; return their names."""
        name = f"{kind}_{len(self.nodes)}"
        names = [name] if outputs == 1 else [f"{name}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=name, **attributes))
        return names

    def constant(self, values: ArrayLike, kind: DTypeLike, name: str = "") -> str:
        """Add a constant; return its name. One of the same name, or a small one of the same value, is added once."""
        array: NDArray = np.array(values, kind, order="C")
        key = name or (array.dtype.str, array.shape, array.tobytes() if array.nbytes < 64 else len(self.constants))
        if key not in self._names:
            self._bytes += array.nbytes
            if self._bytes > MOST_BYTES:
                raise ValueError("the dense weights are larger than 2 GB, which is more than an ONNX file can hold")
            self._names[key] = name or f"constant_{len(self.constants)}"
            self.constants.append(numpy_helper.from_array(array, self._names[key]))
        return self._names[key]

    def cast(self, value: str, kind: DTypeLike) -> str:
        """Convert a value to another type."""
        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))

    def named(self, value: str, name: str) -> None:
        """Give a value the name of an output."""
        self.nodes.append(helper.make_node("Identity", [value], [name], name=name))
