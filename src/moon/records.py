"""JSON files that are read strictly, and digests of what files contain."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moon.errors import DataError
from moon.files import open_regular, write_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MAX_JSON_BYTES = 2**26
_DIGEST = "content_sha256"


def read_json(path: Path) -> Any:
    """Read a JSON file; a ValueError if it is not valid, see `parse_json`, too large, or not a regular file."""
    return parse_json(read_limited(path).decode("utf-8"))


def read_limited(path: Path, limit: int = _MAX_JSON_BYTES) -> bytes:
    """Read a regular file of at most `limit` bytes; anything else is a `DataError`."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise DataError(f"{path}: has more than {limit:,} bytes")
        return file.read(limit)


def parse_json(text: str) -> Any:
    """Parse JSON in which all numbers are finite; a ValueError says what is wrong."""
    try:
        return json.loads(text, parse_constant=_finite, parse_float=_finite)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _finite(text: str) -> float:
    if not math.isfinite(value := float(text)):
        raise ValueError(f"{text} is not a finite number")
    return value


def write_record(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object atomically, with a SHA-256 of its content."""
    content = json.loads(json.dumps(value, allow_nan=False))
    write_json(path, content | {_DIGEST: json_digest(content)})


def read_record(path: Path) -> dict[str, Any]:
    """Read what `write_record` wrote, without its digest; a ValueError if it is damaged or not a JSON object.

    Kept runs of before there were digests have none, and are read without this check.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    digest = value.pop(_DIGEST, None)
    if digest is not None and digest != json_digest(value):
        raise ValueError("its content does not match its SHA-256")
    return value


def json_digest(value: Any) -> str:
    """Return the SHA-256 of a JSON value; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode()).hexdigest()


def arrays_digest(arrays: Mapping[str, NDArray]) -> str:
    """Return the SHA-256 of named arrays; their order does not matter."""
    import numpy as np

    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.data if array.dtype == np.uint8 else array.tobytes())  # bytes need no copy
    return digest.hexdigest()
