"""Hostile MAT-files and archives."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zlib

import numpy as np
from array_cases import BATCH, IMAGES, LABELS, VALUE, Attack, batch
from cases import Case, damaged, fifo, file, sparse


def mat_array(name: bytes, values: np.ndarray, code: int = 9, kind: int = 2, shape: tuple[int, ...] = ()) -> bytes:
    """A numeric array as MATLAB stores it."""

    def element(code: int, content: bytes) -> bytes:
        return struct.pack("<II", code, len(content)) + content + bytes(-len(content) % 8)

    shape = shape or values.shape
    sizes = element(5, struct.pack(f"<{len(shape)}i", *shape))
    named = struct.pack("<HH", 1, len(name)) + name.ljust(4, b"\0")
    return element(14, element(6, struct.pack("<II", code, 0)) + sizes + named + element(kind, values.tobytes("F")))


def mat_cases() -> list[Case]:
    name = "train_32x32.mat"
    start = b"MATLAB 5.0".ljust(124) + b"\0\1IM"
    x, y = mat_array(b"X", IMAGES.transpose(1, 2, 3, 0)), mat_array(b"y", LABELS.astype(np.uint8)[:, None])

    def packed(*arrays: bytes) -> bytes:
        return b"".join(struct.pack("<II", 15, len(c := zlib.compress(array))) + c for array in arrays)

    def bomb() -> bytes:
        return start + packed(mat_array(b"X", np.zeros(10**8, np.uint8), shape=(10, 10)), y)

    flipped = bytearray(start + x + y)
    flipped[len(start) + 57] = 1  # the length of a name
    bad = {
        "level 7.3": (b"MATLAB 7.3".ljust(124) + b"\0\2IM" + x + y, "is not a MAT-file of level 5"),
        "level 4": (struct.pack("<5i", 0, 3, 1, 0, 2) + b"y\0" + bytes(24), "is not a MAT-file of level 5"),
        "empty": (b"", "is not a MAT-file of level 5"),
        "header only": (start, "it has no array"),
        "y only": (start + y, "it has no array X"),
        "a length of 4 GB": (start + struct.pack("<II", 14, 2**32 - 1) + x, "is truncated"),
        "a shape of 2^93": (start + mat_array(b"X", IMAGES, shape=(2**31 - 1,) * 3) + y, "bytes of memory"),
        "a negative shape": (start + mat_array(b"X", IMAGES, shape=(-32, -32, 3, 3)) + y, "is damaged"),
        "a class of objects": (start + mat_array(b"X", IMAGES, code=17) + y, "is not an array of real numbers"),
        "unknown numbers": (start + mat_array(b"X", IMAGES, kind=99) + y, "is damaged"),
        "doubles": (start + mat_array(b"X", IMAGES.transpose(1, 2, 3, 0), code=6) + y, "they must be uint8"),
        "damaged checksum": (start + packed(x)[:-1] + b"\0" + packed(y), "damaged compressed data"),
        "not zlib": (start + struct.pack("<II", 15, 16) + bytes(16), "damaged compressed data"),
    }
    found = [
        Case("mat: ordinary", "any", file(name, start + x + y), value=VALUE),
        Case("mat: compressed", "any", file(name, start + packed(x, y)), value=VALUE),
        Case("mat: the byte that kills SciPy", "any", file(name, bytes(flipped)), either=True),
        Case("mat: compressed bomb", "any", file(name, bomb), "is damaged"),
        Case("mat: named pipe", "any", fifo(name), "is a named pipe"),
        Case("mat: sparse, 3 GB", "any", sparse(name, 3 * 10**9, start), "bytes of memory"),
    ]
    found += [Case(f"mat: {what}", "any", file(name, content), phrase) for what, (content, phrase) in bad.items()]
    for what, content in damaged(start + packed(x, y), 8, seed=5, start=124):
        found.append(Case(f"mat: compressed, {what}", "any", file(name, content), either=True, value=VALUE))
    for what, content in damaged((start + x + y)[:300], 8, seed=6, start=124):
        rest = (start + x + y)[300:]
        found.append(Case(f"mat: header, {what}", "any", file(name, content + rest), either=True))
    return found


def tar(*members: tuple[str, bytes], mode: str = "w:gz", **settings: object) -> bytes:
    with tarfile.open(None, mode, stream := io.BytesIO()) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            for key, value in settings.items():
                setattr(member, key, value)
            archive.addfile(member, io.BytesIO(content))
    return stream.getvalue()


def tar_cases() -> list[Case]:
    name, content = "cifar.tar.gz", pickle.dumps(batch(), 2)
    good = tar((f"cifar/{BATCH}", content))
    low, large, memory = {"MOON_MAX_BYTES": "20000000"}, bytes(3 * 10**7), "bytes of memory"

    def raw(size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
        member = tarfile.TarInfo(BATCH)
        member.size, member.type = size, kind
        return member.tobuf(tarfile.GNU_FORMAT)

    def many() -> bytes:
        return tar(*((f"data_batch_{n}", large[: 5 * 10**6]) for n in range(9)))

    bad = {
        "truncated": (good[:2000], "cannot be read as an archive"),
        "empty": (b"", "cannot be read as an archive"),
        "not an archive": (b"text" * 1000, "cannot be read as an archive"),
        "a link as batch": (tar((BATCH, b""), type=tarfile.SYMTYPE, linkname="/etc/passwd"), "contains no CIFAR train"),
        "a device as batch": (tar((BATCH, b""), type=tarfile.CHRTYPE), "contains no CIFAR train"),
        "a negative size": (raw(-1024), "cifar.tar.gz: "),
        "3 GB declared": (raw(3 * 10**9), "cifar.tar.gz: "),
        "a name of 900 MB": (raw(900 * 2**20, tarfile.GNUTYPE_LONGNAME), "a header of"),
        "a header of 900 MB": (raw(900 * 2**20, tarfile.XHDTYPE), "a header of"),
        "code": (tar((BATCH, pickle.dumps(Attack(), 2))), "which is not plain data"),
    }
    found = [
        Case("tar: ordinary", "any", file(name, good), value=VALUE),
        Case("tar: a path outside", "any", file(name, tar((f"../../outside/{BATCH}", content))), value=VALUE),
        Case("tar: sparse, 3 GB", "any", sparse("cifar.tar", 3 * 10**9), "cifar.tar: "),
        Case("tar: sparse, with a member of 2 GB", "any", sparse("cifar.tar", 3 * 10**9, raw(2 * 10**9)), memory),
        Case("tar: bomb before the batch", "any", file(name, lambda: tar(("other", large), (BATCH, content))),
             memory, environment=low),
        Case("tar: bomb as batch", "any", file(name, lambda: tar((BATCH, large))), memory, environment=low),
        Case("tar: a batch of 700 MB", "any", file(name, lambda: tar((BATCH, bytes(700 * 10**6)))), memory),
        Case("tar: many batches", "any", file(name, many),
             memory, environment=low),
        Case("tar: named pipe", "any", fifo(name), "is a named pipe"),
    ]  # fmt: skip
    found += [Case(f"tar: {what}", "any", file(name, made), phrase) for what, (made, phrase) in bad.items()]
    for what, made in damaged(good, 8, seed=7):
        found.append(Case(f"tar: {what}", "any", file(name, made), either=True))
    return found


def cases() -> list[Case]:
    return [*mat_cases(), *tar_cases()]
