"""Safetensors files of evidence, written and mapped chunk by chunk: large ones are never in memory as a whole."""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from moon.evidence import DiskTensor, chunks
from moon.files import open_regular

_DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
_DTYPES[torch.int64] = "I64"
_NAMED = {name: dtype for dtype, name in _DTYPES.items()}


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, str]) -> None:
    """Write tensors on the CPU into a safetensors file, with this metadata."""
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())  # so that all are aligned
    layout: dict[str, object] = {"__metadata__": dict(header)}
    end = 0
    for name, tensor in ordered:
        start, end = end, end + tensor.numel() * tensor.element_size()
        layout[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(layout).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            for (part,) in chunks(tensor):
                file.write(part.contiguous().view(torch.uint8).numpy().data)


def map_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a valid safetensors file, on disk; it must not change while they are in use."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        layout = json.loads(file.read(size))
        pages = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return {
        name: DiskTensor.of_pages(
            pages, path.parent, _NAMED[entry["dtype"]], tuple(entry["shape"]), 8 + size + entry["data_offsets"][0]
        )
        for name, entry in layout.items()
        if name != "__metadata__"
    }
