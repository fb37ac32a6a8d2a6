"""Write `.moon` files: a network, and a detector with its threshold, as plain data. A file contains no code.

A file is a safetensors file with JSON metadata; `runtime/README.md` describes it. A sparse weight is stored as
`NAME.counts` (the non-zeros of each output), `NAME.gaps` (the number of zeros before each non-zero of an output; 255
stands for 255 zeros and no weight) and `NAME.values`, with int8 values also `NAME.scale` (a factor for each output).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from moon.files import write_atomic

if TYPE_CHECKING:
    from moon.export.graph import Graph  # which imports torch

FORMAT = 1
PRECISIONS = ("float32", "float16", "int8")
SKIP = 255
_NO_DIGEST = "0" * 64


def write_network(
    path: Path | str,
    graph: Graph,
    description: Mapping[str, Any],
    precision: str = "float16",
    tensors: Mapping[str, NDArray] | None = None,
) -> int:
    """Write a network to a file, and return its size in bytes.

    `description` is what else the file should say, as plain values: preprocessing, class names, detector, provenance;
    `tensors` belong to it. `precision` is that of stored weights, "float16", "float32" or "int8". Biases are float32;
    with "int8", weights that are not sparse are float16. A weight that is too large for it is a ValueError.
    """
    content = network_bytes(graph, description, precision, tensors)
    write_atomic(Path(path), lambda partial: partial.write_bytes(content))
    return len(content)


def network_bytes(
    graph: Graph,
    description: Mapping[str, Any] | None = None,
    precision: str = "float32",
    tensors: Mapping[str, NDArray] | None = None,
) -> bytes:
    """The content of a `.moon` file; the arguments are those of `write_network`."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision must be {', '.join(PRECISIONS[:-1])} or {PRECISIONS[-1]}, not '{precision}'")
    ops, stored = [], dict(tensors or {})
    for op in graph.ops:
        op = dict(op)
        for key in ("bias", "scale", "shift"):
            if op.get(key) is not None:
                stored[op[key]] = graph.weights[op[key]].numpy()
        if "weight" in op:
            weight = graph.weights[op["weight"]].numpy()
            found, is_sparse = encoded(op["weight"], weight, precision)
            stored |= found
            op |= {"shape": list(weight.shape)} if is_sparse else {}
        ops.append(op)
    outputs = {"features": graph.features, "logits": graph.logits}
    content = {"format": FORMAT, "input": list(graph.input), "graph": ops, "outputs": outputs, **(description or {})}
    file = in_order(save(stored, {"moon": json.dumps(content, allow_nan=False), "sha256": _NO_DIGEST}))
    # The digest is that of the whole file, with zeros in its own place. The key occurs once more at most, in the text
    # of "moon", where its quotes are escaped.
    before, key, after = file.partition(b'"sha256":"')
    assert after.startswith(_NO_DIGEST.encode())
    return before + key + hashlib.sha256(file).hexdigest().encode() + after[len(_NO_DIGEST) :]


def in_order(file: bytes) -> bytes:
    """The bytes of a safetensors file with its metadata sorted by name.

    safetensors writes them in an order that changes from one call to the next, so that equal contents would give files
    with different digests.
    """
    end = 8 + int.from_bytes(file[:8], "little")
    header = json.loads(file[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + file[end:]


def encoded(name: str, weight: NDArray, precision: str) -> tuple[dict[str, NDArray], bool]:
    """The tensors that store a weight (its non-zeros, or all where that is smaller), and whether they are sparse."""
    rows = weight.reshape(len(weight), -1)
    kind = np.float32 if precision == "float32" else np.float16
    if not np.abs(rows).max() <= np.finfo(kind).max:
        raise ValueError(f"{name}: has a weight of {np.abs(rows).max():g}, too large for {kind.__name__}")
    dense = rows.astype(kind)
    scale = np.abs(rows).max(1).astype(np.float32) / 127
    values = np.rint(rows / np.where(scale > 0, scale, 1)[:, None]).astype(np.int8) if precision == "int8" else dense
    output, position = np.nonzero(values)
    before = np.where(np.diff(output, prepend=-1) > 0, -1, np.roll(position, 1))
    gap = position - before - 1
    skips = gap // SKIP
    gaps = np.full(len(gap) + skips.sum(), SKIP, np.uint8)
    gaps[np.arange(len(gap)) + skips.cumsum()] = gap % SKIP  # after the skips of the same weight
    counts = np.bincount(output, minlength=len(rows)).astype(np.uint32)
    tensors = {f"{name}.counts": counts, f"{name}.gaps": gaps, f"{name}.values": values[output, position]}
    if precision == "int8":
        tensors[f"{name}.scale"] = scale
    if sum(tensor.nbytes for tensor in tensors.values()) >= dense.nbytes:
        return {name: dense.reshape(weight.shape)}, False
    return tensors, True
