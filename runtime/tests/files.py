"""Writes .moon files for tests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

_NAMES = {"<f8": "F64", "<f4": "F32", "<f2": "F16", "|i1": "I8", "|u1": "U8", "<u4": "U32"}


def encode(name: str, weight: np.ndarray, values: str = "<f4") -> dict[str, np.ndarray]:
    """A sparse weight as counts, gaps and values."""
    counts, gaps, kept = [], [], []
    scale = np.abs(weight).reshape(len(weight), -1).max(1) / 127
    for row, factor in zip(weight.reshape(len(weight), -1), scale, strict=True):
        positions = np.flatnonzero(row)
        counts.append(len(positions))
        for gap in np.diff(positions, prepend=-1) - 1:
            gaps += [255] * (gap // 255) + [gap % 255]
        kept.append(np.round(row[positions] / factor) if values == "|i1" else row[positions])
    tensors = {
        f"{name}.counts": np.array(counts, "<u4"),
        f"{name}.gaps": np.array(gaps, "|u1"),
        f"{name}.values": np.concatenate(kept).astype(values),
    }
    return tensors | ({f"{name}.scale": scale.astype("<f4")} if values == "|i1" else {})


def pack(graph: list[dict[str, Any]], tensors: dict[str, np.ndarray], **description: Any) -> bytes:
    """The bytes of a file."""
    data, header = b"", {}
    for name, array in tensors.items():
        header[name] = {
            "dtype": _NAMES[array.dtype.str],
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    moon = json.dumps({"format": 1, "graph": graph} | description)
    return with_digest({"__metadata__": {"moon": moon, "sha256": "0" * 64}} | header, data)


def with_digest(header: dict[str, Any] | bytes, data: bytes) -> bytes:
    """A file with this header, in which 64 zeros stand for the digest."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    file = len(text).to_bytes(8, "little") + text + data
    return file.replace(b"0" * 64, hashlib.sha256(file).hexdigest().encode(), 1)


def with_text(file: bytes, old: str, new: str) -> bytes:
    """The file with another text in its header, and the digest that belongs to it."""
    end = 8 + int.from_bytes(file[:8], "little")
    digest = json.loads(file[8:end])["__metadata__"]["sha256"]
    header = file[8:end].decode().replace(digest, "0" * 64)
    assert old in header
    return with_digest(header.replace(old, new, 1).encode(), file[end:])
