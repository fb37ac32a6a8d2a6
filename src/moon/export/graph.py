"""The graph of a network as plain data, for a runtime without PyTorch: operators and weights, BatchNorm folded in."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

Op = dict[str, Any]

_FUSABLE = ("conv2d", "linear", "add", "mul", "affine")  # operators that may apply an activation to their result


@dataclass
class Graph:
    """A network as a list of operators. Tensors are numbered; 0 is the input.

    Each operator is a dict of plain values: `op`, `in` (numbers of tensors), `out` (a number), the names of its
    weights, its settings, and `act`, an activation that is applied to the result, or None.

    Args:
        input: The shape of an input, (C, H, W).
        ops: The operators in the order of computation.
        weights: The weights by name, float32.
        features: The number of the tensor that enters the classifier, followed by the statistics of inner layers, if
            there are any.
        logits: The number of the output.
        layer_sizes: How wide the statistics of each inner layer are, as in `Evidence`.
    """

    input: tuple[int, ...]
    ops: list[Op] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)
    features: int = 0
    logits: int = 0
    layer_sizes: tuple[int, ...] = ()


def fold(graph: Graph) -> None:
    """Fold BatchNorm into the convolution before it, and activations into the operator before them.

    This is possible where nothing else reads the result of that operator.
    """
    readers = Counter(number for op in graph.ops for number in op["in"]) + Counter((graph.features, graph.logits))
    made_by: dict[int, Op] = {}
    kept: list[Op] = []
    for op in graph.ops:
        before = made_by.get(op["in"][0], {})
        is_free = before.get("act", "") is None and readers[op["in"][0]] == 1
        if is_free and op["op"] == "affine" and before["op"] == "conv2d":
            _fold_affine(graph, before, op)
        elif is_free and op["op"] == "act" and before["op"] in _FUSABLE:
            before["act"] = op["act"]
        else:
            made_by[op["out"]] = op
            kept.append(op)
            continue
        before["out"] = op["out"]
        made_by[op["out"]] = before
    numbers = {0: 0} | {op["out"]: number for number, op in enumerate(kept, 1)}
    for op in kept:
        op["in"], op["out"] = [numbers[number] for number in op["in"]], numbers[op["out"]]
    graph.ops, graph.features, graph.logits = kept, numbers[graph.features], numbers[graph.logits]


def _fold_affine(graph: Graph, conv: Op, affine: Op) -> None:
    scale, shift = (graph.weights.pop(affine[key]).double() for key in ("scale", "shift"))
    kernel, name = graph.weights[conv["weight"]], f"{conv['weight']}.bias"
    before = graph.weights.pop(conv["bias"]).double() if conv["bias"] else 0.0
    graph.weights[conv["weight"]] = (kernel.double() * scale.view(-1, 1, 1, 1)).float()
    graph.weights[name], conv["bias"] = (before * scale + shift).float(), name
