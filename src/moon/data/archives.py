"""Read archives that may be damaged or malicious: sizes are checked before anything is unpacked."""

from __future__ import annotations

import gzip
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection
from contextlib import closing
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from moon.data.limits import CarefulReader, allowed_bytes, check_bytes, max_bytes, open_file
from moon.errors import DataError
from moon.suggest import first_line

_MAX_READ = 2**24  # bytes of a zip archive's table of contents
_CHUNK_BYTES = 2**20
_COPIES = 3  # of a file of a tar archive: its bytes, its images, and the images of all files


def read_tar(path: Path, is_needed: Callable[[str], bool]) -> dict[str, bytes]:
    """Read files of a tar archive, compressed with gzip or not.

    Args:
        path: The archive.
        is_needed: Whether the file of a name, without its folders, is read.

    Returns:
        The content of each file by its path in the archive, sorted.

    Raises:
        DataError: The archive is missing or damaged, or all of it needs more memory than allowed.
    """
    found: dict[str, bytes] = {}
    try:
        with open_file(path) as file:
            allowed, needed = max_bytes(), 0
            stream = CarefulReader(_unpacked(file), allowed, path)
            with closing(tarfile.TarFile(fileobj=stream)) as archive:  # pyright: ignore[reportArgumentType]
                for member in archive:
                    if member.isreg() and not member.issparse() and is_needed(PurePosixPath(member.name).name):
                        needed += _COPIES * member.size
                        check_bytes(needed, allowed, path)
                        found[member.name] = _content(archive, member)
    except (tarfile.TarError, OSError, EOFError, zlib.error, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read as an archive ({first_line(error)})") from error
    return dict(sorted(found.items()))


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    assert file is not None  # it is a regular file
    return b"".join(iter(lambda: file.read(_CHUNK_BYTES), b""))


def _unpacked(file: BinaryIO) -> BinaryIO | gzip.GzipFile:
    """Return the stream inside a file that is compressed with gzip, or the file itself."""
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    return gzip.GzipFile(fileobj=file) if is_packed else file


def read_start(path: Path, header: int, size_of: Callable[[bytes], int]) -> bytearray:
    """Read a file whose header declares its length, compressed with gzip or not.

    Args:
        path: The file.
        header: Bytes of the header.
        size_of: Returns the length of the file from its header; may raise a `DataError`.

    Returns:
        The file, and one byte more if it is longer than it declares.

    Raises:
        DataError: The file is missing or damaged, or declares more than is allowed.
    """
    with open_file(path) as file:
        stream = _unpacked(file)
        try:
            content = bytearray(stream.read(header))
            size = size_of(bytes(content))
            check_bytes(size, max_bytes(), path)
            while len(content) <= size and (chunk := stream.read(min(_CHUNK_BYTES, size + 1 - len(content)))):
                content += chunk
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip ({error})") from error
    return content


class _SmallReads(BufferedIOBase):
    """A file that refuses large single reads: the table of contents of a damaged zip archive."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        content = self._file.read(_MAX_READ + 1 if size is None or size < 0 else min(size, _MAX_READ + 1))
        if len(content) > _MAX_READ:
            raise zipfile.BadZipFile(f"more than {_MAX_READ:,} bytes are read at once")
        return content


def read_npz(path: Path, names: Collection[str] | None = None) -> tuple[dict[str, NDArray], list[str]]:
    """Read arrays of an .npz file.

    Args:
        path: The file.
        names: The arrays to read; default: all.

    Returns:
        Those of the arrays that the file contains, and the names of all arrays in it.

    Raises:
        DataError: The file is missing or damaged, or the arrays need more memory than allowed.
    """
    with open_file(path) as file:
        allowed = allowed_bytes([os.fstat(file.fileno())])
        try:
            with zipfile.ZipFile(_SmallReads(file)) as archive:  # pyright: ignore[reportArgumentType]
                members = {member.filename.removesuffix(".npy"): member for member in archive.infolist()}
                wanted = {name: members[name] for name in (members if names is None else names) if name in members}
                check_bytes(sum(member.file_size for member in wanted.values()), allowed, path)
                arrays = {}
                for name, member in wanted.items():
                    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                        raise DataError(f"{path}: cannot be read as .npz (an unusual compression of {name})")
                    with archive.open(member) as stream:
                        arrays[name] = np.lib.format.read_array(stream, allow_pickle=False)
        except DataError:
            raise
        except (Exception, MemoryError) as error:  # a damaged file can fail anywhere in NumPy's reader
            reason = first_line(error)
            if reason.startswith("Object arrays"):
                reason = "it has an array of Python objects, such as None; save integers or strings instead"
            raise DataError(f"{path}: cannot be read as .npz ({reason})") from error
    return arrays, list(members)
