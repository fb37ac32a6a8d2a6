"""Read `.moon` files without the runtime, and check that they are not damaged."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from moon.errors import DamagedCheckpoint, DataError
from moon.export.file import FORMAT, SKIP
from moon.files import open_regular

_MOST_HEADER = 2**24  # bytes
_MOST_WEIGHTS = 2**29  # in one dense weight: 2 GiB of float32


def read_file(path: Path | str) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Read a `.moon` file: the description (its JSON text) and the tensors by name.

    Raises a DataError if it is not a regular file or not a `.moon` file, or of a later format; a DamagedCheckpoint if
    it is one but was truncated or changed.
    """
    path = Path(path)
    foreign = DataError(f"{path}: is not a .moon file; `moon pack` writes one")
    damaged = DamagedCheckpoint(f"{path}: is damaged or incomplete; copy it again, or write it again with `moon pack`")
    with open_regular(path) as file:
        start = file.read(8)
        size = int.from_bytes(start, "little")
        header = file.read(min(size, _MOST_HEADER))
        if not header.startswith(b"{"):
            raise foreign
        try:
            entries = json.loads(header)
            metadata = entries.pop("__metadata__")
            text, digest = metadata["moon"], metadata["sha256"].encode()
            end = 8 + size + max((entry["data_offsets"][1] for entry in entries.values()), default=0)
        except (ValueError, RecursionError):
            raise damaged if header.startswith(b'{"__metadata__":{') else foreign from None
        except (KeyError, TypeError, AttributeError, IndexError):
            raise foreign from None
        if end != os.fstat(file.fileno()).st_size:  # before the rest is read: a file can be longer than the memory
            raise damaged
        content = start + header + file.read()
    at = content.find(digest)
    zeros = content[:at] + b"0" * len(digest) + content[at + len(digest) :]
    if len(digest) != 64 or hashlib.sha256(zeros).hexdigest().encode() != digest:
        raise damaged
    try:
        tensors, description = load(content), json.loads(text)
        form = description["format"]
    except (SafetensorError, ValueError, RecursionError, KeyError, TypeError):
        raise foreign from None
    if form != FORMAT:
        raise DataError(f"{path}: has format {form!r}; this version reads format {FORMAT}, a later one may read it")
    return description, tensors


def dense_weight(tensors: Mapping[str, NDArray], name: str, shape: list[int] | None) -> NDArray[np.float32]:
    """A weight as a dense float32 array, whichever way the file stores it.

    `shape` is what the operation states, or None. Raises a ValueError if the tensors do not fit together.
    """
    if name in tensors:
        stored = tensors[name]
        if stored.dtype not in (np.float16, np.float32) or (shape is not None and list(stored.shape) != shape):
            raise ValueError(f"'{name}' must be of type F16 or F32 and of the stated shape")
        return stored.astype(np.float32)
    if shape is None or not all(isinstance(side, int) and side > 0 for side in shape):
        raise ValueError(f"'{name}' needs a shape of positive integers")
    if (total := int(np.prod([float(side) for side in shape]))) > _MOST_WEIGHTS:
        raise ValueError(f"'{name}' has {total} weights, which is more than an ONNX file can hold")
    counts, gaps, values = (tensors[f"{name}.{part}"] for part in ("counts", "gaps", "values"))
    rows, columns = shape[0], total // shape[0]
    is_weight = gaps != SKIP
    fits = counts.shape == (rows,) and gaps.ndim == 1 and values.shape == (int(is_weight.sum()),)
    if (
        not fits
        or (counts.dtype, gaps.dtype) != (np.uint32, np.uint8)
        or int(counts.sum(dtype=np.uint64)) != len(values)
    ):
        raise ValueError(f"the counts, gaps and values of '{name}' do not fit together")
    # Positions run on through all outputs; those of one output begin behind the last weight of the one before it.
    reached = np.where(is_weight, gaps + np.int64(1), np.int64(SKIP)).cumsum()[is_weight]
    counts = counts.astype(np.int64)
    begin = np.append(0, reached)[counts.cumsum() - counts]
    position = reached - np.repeat(begin, counts) - 1
    if len(position) and position.max() >= columns:
        raise ValueError(f"the gaps of '{name}' reach beyond its {columns} weights per output")
    output = np.repeat(np.arange(rows), counts)
    dense = np.zeros((rows, columns), np.float32)
    dense[output, position] = values
    if values.dtype == np.int8:
        dense *= tensors[f"{name}.scale"].astype(np.float32).reshape(rows, 1)
    return dense.reshape(shape)
