"""The byte budget of what is read: it is checked before anything is read, and only regular files are opened."""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO

from moon.errors import DataError
from moon.files import open_regular

VARIABLE = "MOON_MAX_BYTES"  # the environment variable that replaces the next number
# That a source may need in memory, so that a process stays below 1 GB: 14 for each of 64 million pixels of an image, as
# in moon-runtime. The largest file of the public sets has 307 million.
_MAX_BYTES = 14 * 2**26
_EXPANSION = 4  # a compressed source may also need this many times its size
_MAX_READ = 2**24  # bytes that a header or a table of contents may have


def max_bytes() -> int:
    """Return how many bytes a source may need in memory: 940 MB, or $MOON_MAX_BYTES."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return _MAX_BYTES
    if not (text.isascii() and text.isdecimal() and int(text[:20]) > 0):
        raise DataError(f"{VARIABLE}={text[:40]!r} must be a number of bytes, at least 1")
    return int(text[:20])


def allowed_bytes(files: Iterable[os.stat_result] = ()) -> int:
    """Return how many bytes compressed files may need in memory."""
    return max(max_bytes(), _EXPANSION * sum(file.st_size for file in files))


def check_bytes(count: int, allowed: int, where: object) -> None:
    """Raise a `DataError` if a source would need more memory than it may use.

    Args:
        count: The bytes that it needs.
        allowed: The bytes that it may use, see `max_bytes` and `allowed_bytes`.
        where: The source, for the error message.
    """
    if count > allowed:
        raise DataError(
            f"{where}: needs {count:,} bytes of memory, more than the {allowed:,} allowed; if you trust this source, "
            f"allow more with {VARIABLE}={count}"
        )


def open_file(path: Path) -> BinaryIO:
    """Open a regular file for reading; a `DataError` for anything else, such as a named pipe that would block."""
    try:
        return open_regular(path)
    except (FileNotFoundError, NotADirectoryError):
        raise DataError(f"{path}: no such file") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be opened ({error.strerror})") from None


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """Read a regular file.

    Args:
        path: The file.
        limit: The bytes that it may have; default: `max_bytes`.

    Returns:
        Its content.

    Raises:
        DataError: The file is missing, is not a regular one, or is too large.
    """
    with open_file(path) as file:
        allowed = max_bytes() if limit is None else limit
        check_bytes(os.fstat(file.fileno()).st_size, allowed, path)
        return file.read(allowed)


class CarefulReader(BufferedIOBase):
    """A stream in which damaged sizes do no harm: it ends at a limit, never goes back, and refuses large single reads.

    Args:
        stream: The stream.
        allowed: Its length at most; a read beyond it is a `DataError`.
        where: The source, for the error message.
    """

    def __init__(self, stream: BufferedIOBase | BinaryIO, allowed: int, where: object) -> None:
        self._stream, self._allowed, self._where, self._position = stream, allowed, where, 0

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or not 0 <= size <= _MAX_READ:
            raise DataError(f"{self._where}: is damaged (a header of {size} bytes)")
        check_bytes(self._position + size, self._allowed, self._where)
        content = self._stream.read(size)
        self._position += len(content)
        return content

    def seek(self, offset: int, whence: int = 0, /) -> int:
        check_bytes(offset, self._allowed, self._where)
        while self._position < offset and self.read(min(2**20, offset - self._position)):
            pass
        return self._position
