"""Image lists: text files with one `<path> <label>` per line, label -1 for an image of no known class."""

from __future__ import annotations

import re
from pathlib import Path

from moon.data.folders import Inside
from moon.data.limits import check_bytes, max_bytes, read_bytes
from moon.errors import DataError

_LINE_BYTES = 256  # of memory that a line needs


def read_entries(source: Path) -> list[tuple[str, int, str]]:
    """Parse an image list, with line ends of any kind: (path, label, "file:line" for messages) of each line."""
    try:
        text = read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: is not text ({error})") from error
    check_bytes(_LINE_BYTES * text.count("\n"), max_bytes(), source)
    entries: list[tuple[str, int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        relative, _, label = line.strip().rpartition(" ")
        if not relative or not re.fullmatch(r"-?[0-9]{1,9}", label):
            raise DataError(f"{where}: '{line.strip()[:200]}' is not '<path> <label>'")
        entries.append((relative, int(label), where))
    if not entries:
        raise DataError(f"{source}: the list is empty")
    return entries


def check_inside(entries: list[tuple[str, int, str]], root: Path) -> None:
    """Raise a `DataError` if a path of an image list, see `read_entries`, leads out of the folder it is relative to."""
    is_inside = Inside(root)
    for relative, _, where in entries:
        if not is_inside(root / relative):
            raise DataError(f"{where}: '{relative}' is outside the root {root}, or links out of it")


def count_entries(source: Path) -> int:
    """Count the images of an image list, without checking its lines."""
    return sum(1 for line in read_bytes(source).splitlines() if line.strip())
