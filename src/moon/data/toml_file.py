"""Read TOML files of bounded size."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from moon.data.limits import read_bytes
from moon.errors import DataError

_MAX_BYTES = 2**20


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most a megabyte; a `DataError` if that is impossible."""
    try:
        return tomllib.loads(read_bytes(path, _MAX_BYTES).decode("utf-8-sig"))
    except DataError:
        raise
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # also what tomllib and the decoder raise
        raise DataError(f"{path}: is not valid TOML ({error})") from None
