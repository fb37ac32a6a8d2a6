"""MAT-files: the arrays that SciPy reads, and an error for anything that is damaged."""

import io
import struct
import zlib

import numpy as np
import pytest
from scipy.io import loadmat, savemat

from moon.data import DataError, read_svhn
from moon.data.mat_file import read_mat

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (32, 32, 3, 12), dtype=np.uint8)
LABELS = RNG.integers(1, 11, (12, 1), dtype=np.uint8)


def mat(compressed=False, **arrays):
    savemat(file := io.BytesIO(), arrays or {"X": IMAGES, "y": LABELS}, do_compression=compressed)
    return file.getvalue()


def read(content, allowed=10**6):
    return read_mat(content, ("X", "y"), allowed, "a.mat")


def big_endian():
    """X and y as a big-endian machine writes them, y (an array of doubles) stored in 16 bits."""

    def element(kind, content):
        return struct.pack(">II", kind, len(content)) + content + bytes(-len(content) % 8)

    def array(name, code, numbers, stored, shape):
        flags, sizes = element(6, struct.pack(">II", code, 0)), element(5, struct.pack(f">{len(shape)}i", *shape))
        small = struct.pack(">HH", len(name), 1) + name.ljust(4, b"\0")
        return element(14, flags + sizes + small + element(stored, numbers))

    y = array(b"y", 6, LABELS.astype(">i2").tobytes(), 3, LABELS.shape)
    return b"MATLAB".ljust(124) + b"\1\0MI" + array(b"X", 9, IMAGES.tobytes("F"), 2, IMAGES.shape) + y


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_the_arrays_are_those_that_scipy_reads(compressed, kind):
    content = mat(compressed, other="text", X=IMAGES.astype(kind), z=[1 + 2j], y=LABELS.astype(kind))
    theirs = loadmat(io.BytesIO(content))
    ours = read(content)
    assert list(ours) == ["X", "y"]
    for name, values in ours.items():
        assert values.dtype == theirs[name].dtype == np.dtype(kind)
        assert np.array_equal(values, theirs[name])


def test_other_byte_order_and_smaller_stored_numbers():
    ours, theirs = read(big_endian()), loadmat(io.BytesIO(big_endian()))
    assert ours["y"].dtype == np.float64
    assert np.array_equal(ours["y"], LABELS)
    assert np.array_equal(ours["X"], IMAGES)
    assert np.array_equal(theirs["X"], IMAGES)


def is_read(content, changes=0):
    """Whether a file is read; the arrays must then be the original ones, but for a few changed numbers."""
    try:
        found = read(bytes(content))
    except DataError:
        return False
    if found.keys() != {"X", "y"}:  # `read_svhn` refuses it
        return False
    for name, original in (("X", IMAGES), ("y", LABELS)):
        assert found[name].size == original.size
        assert (found[name].ravel("F") != original.ravel("F")).sum() <= changes
    return True


@pytest.mark.parametrize("make", [mat, lambda: mat(True), big_endian], ids=["plain", "compressed", "big-endian"])
def test_damage_is_refused_or_changes_single_numbers_only(make):
    original, rng = make(), np.random.default_rng(1)
    has_checksum = original[128] == 15  # then no number can change unnoticed
    bits = [(at, bit) for at in range(124, 232) for bit in range(8)]
    bits += [(int(rng.integers(len(original))), int(rng.integers(8))) for _ in range(300)]
    refused = 0
    for at, bit in bits:
        content = bytearray(original)
        content[at] ^= 1 << bit
        refused += not is_read(content, 0 if has_checksum else 1)
    for length in [*range(300), *rng.integers(len(original), size=50).tolist(), len(original) - 8]:
        assert not is_read(original[:length])
    for _ in range(200):
        content = bytearray(original)
        at = int(rng.integers(31, 60)) * 4
        content[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**20])))
        refused += not is_read(content, 0 if has_checksum else 4)
    assert refused > 100


def test_a_bomb_is_refused_before_it_is_unpacked():
    shape = (32, 32, 3, 2**20)  # 3 GiB
    size = int(np.prod(shape))
    inner = struct.pack("<IIIIII", 14, size + 64, 6, 8, 9, 0) + struct.pack("<II4i", 5, 16, *shape)
    inner += struct.pack("<HHI", 1, 1, ord("X")) + struct.pack("<II", 2, size) + bytes(10**6)
    packed = zlib.compress(inner)
    content = b"MATLAB".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(packed)) + packed
    with pytest.raises(DataError, match=r"X: needs 6,442,450,944 bytes of memory.*MOON_MAX_BYTES=6442450944"):
        read(content, 2**30)
    with pytest.raises(DataError, match="has damaged compressed data"):
        read(content, 2**33)


def test_what_is_not_two_numeric_arrays_is_refused(tmp_path):
    path = tmp_path / "test_32x32.mat"
    for content, what in (
        (mat(X="text", y=LABELS), "X is not an array of real numbers"),
        (mat(X=IMAGES * 1j, y=LABELS), "X is not an array of real numbers"),
        (mat(X={"a": 1}, y=LABELS), "X is not an array of real numbers"),
        (mat(X=IMAGES), "it has no array y"),
        (b"MATLAB 7.3".ljust(124) + b"\0\2IM", "is not a MAT-file of level 5"),
    ):
        path.write_bytes(content)
        with pytest.raises(DataError, match=what):
            read_svhn(tmp_path, "test")
