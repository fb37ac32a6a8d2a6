"""Write `.moon` files: a network as plain data, in a safetensors file with JSON metadata. A file contains no code.

A sparse weight is stored as three tensors: `NAME.counts` (the non-zeros of each output), `NAME.gaps` (the number of
zeros before each non-zero of an output; 255 stands for 255 zeros and no weight) and `NAME.values`.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from moon.export.graph import Graph
from moon.files import write_atomic

FORMAT = 1
_SKIP = 255
_PRECISIONS = {"float32": np.float32, "float16": np.float16}


def write_network(path: Path | str, graph: Graph, description: dict[str, Any], precision: str = "float16") -> int:
    """Write a network to a file.

    Args:
        path: The file to write; an existing one is replaced.
        graph: The network.
        description: What else the file should say, as plain values: preprocessing, class names, provenance.
        precision: The type of stored weights, "float16" or "float32". Biases are float32.

    Returns:
        The size of the file in bytes.

    Raises:
        ValueError: If the precision is unknown, or a weight is too large for it.

    Example:
        >>> import tempfile
        >>> from moon import lenet
        >>> from moon.export.file import write_network
        >>> from moon.export.graph import trace
        >>> graph = trace(lenet(10).eval(), (1, 28, 28))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     size = write_network(f"{folder}/lenet.moon", graph, {"classes": list("0123456789")})
        >>> size < 150_000
        True
    """
    if precision not in _PRECISIONS:
        raise ValueError(f"precision must be {' or '.join(_PRECISIONS)}, not '{precision}'")
    ops, tensors = [], {}
    for op in graph.ops:
        stored = dict(op)
        for key in ("bias", "scale", "shift"):
            if stored.get(key) is not None:
                tensors[stored[key]] = graph.weights[stored[key]].numpy()
        if "weight" in stored:
            weight = graph.weights[stored["weight"]].numpy()
            found, is_sparse = encoded(stored["weight"], weight, _PRECISIONS[precision])
            tensors |= found
            stored |= {"shape": list(weight.shape)} if is_sparse else {}
        ops.append(stored)
    outputs = {"features": graph.features, "logits": graph.logits}
    content = {"format": FORMAT, "input": list(graph.input), "graph": ops, "outputs": outputs}
    # The tensors' bytes do not depend on the metadata, which contains their digest.
    plain = save(tensors)
    data = plain[8 + int.from_bytes(plain[:8], "little") :]
    content |= {"sha256": hashlib.sha256(data).hexdigest()} | description
    file = save(tensors, {"moon": json.dumps(content, allow_nan=False)})
    assert file.endswith(data)
    write_atomic(Path(path), lambda partial: partial.write_bytes(file))
    return len(file)


def encoded(name: str, weight: NDArray, kind: type[np.floating]) -> tuple[dict[str, NDArray], bool]:
    """The tensors that store a weight: its non-zeros, or all of it where that is smaller.

    Args:
        name: The name of the weight.
        weight: The weight; its first dimension is that of the outputs.
        kind: The type of stored values.

    Returns:
        The tensors by name, and whether they are sparse.
    """
    rows = weight.reshape(len(weight), -1)
    if not np.abs(rows).max() <= np.finfo(kind).max:
        raise ValueError(f"{name}: has a weight of {np.abs(rows).max():g}, too large for {kind.__name__}")
    stored = rows.astype(kind)
    output, position = np.nonzero(stored)
    before = np.where(np.diff(output, prepend=-1) > 0, -1, np.roll(position, 1))
    gap = position - before - 1
    skips = gap // _SKIP
    gaps = np.full(len(gap) + skips.sum(), _SKIP, np.uint8)
    gaps[np.arange(len(gap)) + skips.cumsum()] = gap % _SKIP  # after the skips of the same weight
    values = stored[output, position]
    counts = np.bincount(output, minlength=len(rows)).astype(np.uint32)
    if gaps.nbytes + values.nbytes + counts.nbytes >= stored.nbytes:
        return {name: stored.reshape(weight.shape)}, False
    return {f"{name}.counts": counts, f"{name}.gaps": gaps, f"{name}.values": values}, True
