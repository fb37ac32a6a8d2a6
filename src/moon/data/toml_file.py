"""Read TOML files whose nesting is bounded: tomllib's time grows with the square of a key's depth."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from moon.data.limits import read_bytes
from moon.errors import DataError

_MAX_BYTES = 2**20
_MAX_DEPTH = 32
_STRINGS_AND_COMMENTS = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'.*?\'\'\'|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+', re.DOTALL
)
_KEY = re.compile(r"[A-Za-z0-9_-]++(?:[ \t]*+\.[ \t]*+[A-Za-z0-9_-]++)*+")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file of at most a megabyte, with keys of at most 32 parts; a `DataError` if that is impossible."""
    try:
        text = read_bytes(path, _MAX_BYTES).decode("utf-8-sig")
        bare = _STRINGS_AND_COMMENTS.sub(lambda found: "" if found.group().startswith("#") else "s", text)
        if any(key.group().count(".") >= _MAX_DEPTH for key in _KEY.finditer(bare)):
            raise DataError(f"{path}: a key has more than {_MAX_DEPTH} parts")
        return tomllib.loads(text)
    except DataError:
        raise
    except RecursionError:
        raise DataError(f"{path}: is nested too deeply") from None
    except ValueError as error:  # also what tomllib and the decoder raise
        raise DataError(f"{path}: is not valid TOML ({error})") from None
