"""Atomic file writes: a reader sees the complete new file, the complete old file, or no file."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Flush a file or folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Create a file or folder atomically.

    Args:
        path: The final path.
        write: Called with a temporary path in the same folder; writes the file, or creates the folder and its files.
    """
    partial = path.with_name(f".{path.name}.part")
    if partial.is_dir():
        shutil.rmtree(partial)
    write(partial)
    for child in sorted(partial.iterdir()) if partial.is_dir() else ():
        sync(child)
    sync(partial)
    partial.rename(path)
    sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomic(path, lambda partial: partial.write_text(text))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically; NaN and infinity raise a ValueError."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: Mapping[str, NDArray], *, compress: bool = True) -> None:
    """Write an .npz file atomically."""

    def save(partial: Path) -> None:
        with partial.open("wb") as file:
            (np.savez_compressed if compress else np.savez)(file, **arrays)  # pyright: ignore[reportArgumentType]

    write_atomic(path, save)
