"""A reader of MAT-files (MATLAB level 5) for numeric arrays. Every length in the file is checked before it is used."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moon.data.limits import check_bytes
from moon.errors import DataError

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED = 14, 15
# Type codes of stored numbers, and codes of array classes: MATLAB may store an array of doubles as bytes.
_STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_COMPLEX = 0x0800
_MAX_NAME = 63  # characters in the name of a MATLAB variable
_MAX_DIMENSIONS = 32
_COPIES = 2  # of an array: as it is stored, and in the order of images
_PREFIX_BYTES = 8 + 16 + 8 + 4 * _MAX_DIMENSIONS + 8 + 64  # of an array, before its numbers


class _Element(NamedTuple):
    """A tagged part of the file."""

    kind: int
    content: memoryview
    end: int  # where the next element begins, if this one is padded to 8 bytes


class _Array(NamedTuple):
    """The description of an array, before its numbers."""

    name: str
    code: int
    is_complex: bool
    shape: tuple[int, ...]
    end: int


def read_mat(content: bytes, names: Collection[str], allowed: int, where: object) -> dict[str, NDArray]:
    """Read numeric arrays from a MAT-file.

    Args:
        content: The file.
        names: The arrays to read; others are skipped.
        allowed: The bytes that each array may need in memory.
        where: The source, for error messages.

    Returns:
        Those of the arrays that the file contains.

    Raises:
        DataError: The file is damaged or of another version, or one of the arrays is not numeric or too large.

    Example:
        >>> import io
        >>> from scipy.io import savemat
        >>> from moon.data.mat_file import read_mat
        >>> savemat(file := io.BytesIO(), {"y": [[1.5], [2.5]]})
        >>> read_mat(file.getvalue(), ["y"], 1000, "an example")["y"].tolist()
        [[1.5], [2.5]]
    """
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None or struct.unpack(f"{order}H", content[124:126])[0] != 0x0100:
        raise DataError(f"{where}: is not a MAT-file of level 5 (MATLAB versions 5 to 7)")
    found: dict[str, NDArray] = {}
    view, at = memoryview(content), _HEADER_BYTES
    while at < len(view):
        part = _element(view, at, order, where)
        if part.kind == _COMPRESSED:
            prefix = _unpacked(part.content, _PREFIX_BYTES, where, complete=False)
        else:
            prefix = view[at : part.end]
        array = _described(prefix, order, where)
        if array is not None and array.name in names:
            found[array.name] = _numbers(part, prefix, array, order, allowed, where)
        at = at + 8 + len(part.content) if part.kind == _COMPRESSED else part.end
    return found


def _element(view: memoryview, at: int, order: str, where: object, available: int | None = None) -> _Element:
    """Read the tag at a position, and find its content; `available` is the real length of a partial view."""
    end = len(view) if available is None else available
    if at + 8 > min(end, len(view)):
        raise DataError(f"{where}: is truncated inside a tag")
    kind, size = struct.unpack_from(f"{order}II", view, at)
    if kind >> 16:  # a small element: its size and up to 4 bytes of content are in the tag
        kind, size, start, stop = kind & 0xFFFF, kind >> 16, at + 4, at + 8
        if size > 4:
            raise DataError(f"{where}: is damaged (a small element of {size} bytes)")
    else:
        start, stop = at + 8, at + 8 + -(-size // 8) * 8
    if start + size > end:
        raise DataError(f"{where}: is truncated: an element of {size:,} bytes, but {max(0, end - start):,} are left")
    return _Element(kind, view[start : start + size], min(stop, end))


def _described(prefix: memoryview, order: str, where: object) -> _Array | None:
    """Read class, shape and name of an array; None for an element that is not an array."""
    if len(prefix) < 8:
        raise DataError(f"{where}: is truncated inside a tag")
    kind, size = struct.unpack_from(f"{order}II", prefix, 0)
    if kind != _MATRIX:
        return None
    available = 8 + size
    flags = _element(prefix, 8, order, where, available)
    if flags.kind != 6 or len(flags.content) != 8:
        raise DataError(f"{where}: is damaged (an array without flags)")
    (word,) = struct.unpack_from(f"{order}I", flags.content)
    shape = _element(prefix, flags.end, order, where, available)
    count, rest = divmod(len(shape.content), 4)
    if shape.kind != 5 or rest or not 2 <= count <= _MAX_DIMENSIONS:
        raise DataError(f"{where}: is damaged (an array without a shape)")
    sizes = struct.unpack(f"{order}{count}i", shape.content)
    if min(sizes) < 0:
        raise DataError(f"{where}: is damaged (an array of shape {sizes})")
    name = _element(prefix, shape.end, order, where, available)
    if name.kind != 1 or len(name.content) > _MAX_NAME:
        raise DataError(f"{where}: is damaged (an array without a valid name)")
    text = bytes(name.content).decode("ascii", "replace")
    return _Array(text, word & 0xFF, bool(word & _COMPLEX), sizes, name.end)


def _numbers(part: _Element, prefix: memoryview, array: _Array, order: str, allowed: int, where: object) -> NDArray:
    """Read the numbers of an array."""
    if array.code not in _CLASSES or array.is_complex:
        raise DataError(f"{where}: {array.name} is not an array of real numbers (class {array.code})")
    kind = np.dtype(_CLASSES[array.code])
    count = prod(array.shape)
    check_bytes(_COPIES * count * kind.itemsize, allowed, f"{where}: {array.name}")
    if part.kind == _COMPRESSED:
        (size,) = struct.unpack_from(f"{order}I", prefix, 4)
        # The size is checked against the shape before anything is unpacked. Numbers have at most 8 bytes.
        if size > array.end + 16 + 8 * count:
            raise DataError(f"{where}: is damaged ({array.name} has {size:,} bytes, and the shape {array.shape})")
        check_bytes(size, allowed + _PREFIX_BYTES, f"{where}: {array.name}")
        prefix = _unpacked(part.content, 8 + size, where, complete=True)
    stored = _element(prefix, array.end, order, where)
    if stored.kind not in _STORED:
        raise DataError(f"{where}: is damaged ({array.name} has numbers of type {stored.kind})")
    numbers = np.dtype(order + _STORED[stored.kind])
    if len(stored.content) != count * numbers.itemsize:
        raise DataError(
            f"{where}: is damaged ({array.name} has {len(stored.content):,} bytes, and the shape {array.shape})"
        )
    values = np.frombuffer(stored.content, numbers).reshape(array.shape, order="F")
    with np.errstate(invalid="ignore", over="ignore"):
        converted = values.astype(kind, copy=False)
        if numbers.newbyteorder("=") != kind and not np.array_equal(converted, values, equal_nan=numbers.kind == "f"):
            raise DataError(f"{where}: is damaged ({array.name} has values outside its type, {kind})")
    return converted


def _unpacked(content: memoryview, size: int, where: object, *, complete: bool) -> memoryview:
    """Decompress the first `size` bytes of an element; `complete` if these must be all."""
    unpacker = zlib.decompressobj()
    try:
        unpacked = unpacker.decompress(content, size)
        if complete and not unpacker.eof:  # reads the checksum
            unpacked += unpacker.decompress(unpacker.unconsumed_tail, 1)
    except zlib.error as error:
        raise DataError(f"{where}: has damaged compressed data ({error})") from None
    if complete and (len(unpacked) != size or not unpacker.eof):
        raise DataError(f"{where}: has damaged compressed data (not the {size:,} bytes that it declares)")
    return memoryview(unpacked)
