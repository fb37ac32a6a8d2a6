"""Hostile files of arrays: .npz, idx and pickles."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cases import Case, damaged, fifo, file, sparse, value_of

RNG = np.random.default_rng(1)
IMAGES = RNG.integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 2])
VALUE = value_of(IMAGES, LABELS)
GREY = value_of(IMAGES[..., :1], LABELS)
FLAT = IMAGES.transpose(0, 3, 1, 2).reshape(3, 3072)
NPZ = "mine/train.npz"
BATCH = "data_batch_1"


class Attack:
    """Unpickling it creates a file."""

    def __reduce__(self) -> tuple:
        return exec, ("open('executed', 'w').close()",)


def npz(save: Callable = np.savez, **arrays: object) -> bytes:
    save(stream := io.BytesIO(), **({"images": IMAGES, "labels": LABELS} | arrays))
    return stream.getvalue()


def header(shape: tuple[int, ...], kind: str = "|u1") -> bytes:
    description = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream := io.BytesIO(), description)
    return stream.getvalue()


def zipped(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    with zipfile.ZipFile(stream := io.BytesIO(), "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def npz_cases() -> list[Case]:
    refused = "cannot be read as .npz"
    labels = header((3,), "<i8") + LABELS.tobytes()
    large = {"MOON_MAX_BYTES": "20000000"}
    objects = np.array([Attack()], dtype=object)
    bad = {
        "no labels": ({"other": IMAGES}, "has no array 'labels'"),
        "float images": ({"images": IMAGES / 2}, "they must be uint8"),
        "NaN labels": ({"labels": np.array([0, np.nan, 1])}, "they must be integers"),
        "label -5": ({"labels": np.array([0, -5, 1])}, "it must be at least -1"),
        "more labels than images": ({"labels": np.arange(4)}, "there must be one label per image"),
        "no images": ({"images": IMAGES[:0], "labels": LABELS[:0]}, "no images"),
        "two classes of one name": ({"classes": np.array(["a", "b", "c", "a"])}, "two classes are called"),
        "numbers as names": ({"classes": np.arange(4)}, "they must be strings"),
        "numbers as files": ({"files": np.arange(3)}, "they must be strings"),
        "an empty name": ({"classes": np.array(["a", " ", "c", "d"])}, "has an empty name"),
    }
    found = [
        Case("npz: ordinary", "npz", file(NPZ, npz()), value=VALUE),
        Case("npz: compressed", "npz", file(NPZ, npz(np.savez_compressed)), value=VALUE),
        Case("npz: names that control a terminal", "npz", file(NPZ, npz(classes=np.array(["\x1b[2J", "\n", "b", "c"]))),
             "has an empty name"),
        Case("npz: pickled objects", "npz", file(NPZ, npz(images=objects)), refused),
        Case("npz: a pickle", "npz", file(NPZ, pickle.dumps(Attack())), refused),
        Case("npz: an .npy file", "npz", file(NPZ, header((3,)) + bytes(3)), refused),
        Case("npz: empty", "npz", file(NPZ, b""), refused),
        Case("npz: named pipe", "npz", fifo(NPZ), "is a named pipe"),
        Case("npz: sparse, 3 GB", "npz", sparse(NPZ, 3 * 10**9), refused),
        Case("npz: sparse .npy, 3 GB", "npz", sparse(NPZ, 3 * 10**9, header((3 * 10**9,))), refused),
        Case("npz: sparse, with a table of contents of 2 GB", "npz",
             sparse(NPZ, 3 * 10**9, b"PK\3\4", struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, 2**31, 0, 0)), refused),
        Case("npz: bomb", "npz", file(NPZ, lambda: zipped(
            {"images.npy": header((20_000, 32, 32, 3)) + bytes(20_000 * 3072), "labels.npy": labels})),
            "more than the 20,000,000 allowed", environment=large),
        Case("npz: bz2", "npz", file(NPZ, zipped({"images.npy": labels, "labels.npy": labels}, zipfile.ZIP_BZIP2)),
             "an unusual compression"),
        Case("npz: path outside", "npz", file(NPZ, zipped({"../../outside/images.npy": b"", "labels.npy": labels})),
             "has no array 'images'"),
    ]  # fmt: skip
    for name, (arrays, phrase) in bad.items():
        content = npz(**arrays) if name != "no labels" else npz(labels=LABELS).replace(b"labels.npy", b"lebals.npy")
        found.append(Case(f"npz: {name}", "npz", file(NPZ, content), phrase))
    for shape in ((10**9,), (10**18,), (2**32, 2**32), (-1,)):
        content = zipped({"images.npy": header(shape), "labels.npy": labels})
        found.append(Case(f"npz: shape {shape}", "npz", file(NPZ, content), "train.npz: "))
    for kind in ("|O", "<U1000000000", "('|u1', (1000000000,))"):
        content = zipped({"images.npy": header((3,), kind), "labels.npy": labels})
        found.append(Case(f"npz: type {kind}", "npz", file(NPZ, content), "train.npz: "))
    for name, content in damaged(npz(np.savez_compressed), 8, seed=2):
        found.append(Case(f"npz: {name}", "npz", file(NPZ, content), either=True, value=VALUE))
    return found


def idx(shape: tuple[int, ...], content: bytes = b"") -> bytes:
    return b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content


def idx_cases() -> list[Case]:
    name, labels_name = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
    images, labels = idx((3, 32, 32), IMAGES[..., 0].tobytes()), idx((3,), LABELS.astype(np.uint8).tobytes())

    def both(content: bytes | Callable[[], bytes], more: bytes = labels) -> Callable[[Path], str]:
        def write(folder: Path) -> str:
            file(labels_name, more)(folder)
            file(name, content)(folder)
            return "."

        return write

    def linked(folder: Path) -> str:
        file(name, images)(folder)
        (folder / labels_name).symlink_to("../outside/secret")
        return "."

    found = [
        Case("idx: ordinary", "any", both(images), value=GREY),
        Case("idx: gzip", "any", both(gzip.compress(images)), value=GREY),
        Case("idx: truncated", "any", both(images[:-1]), "is it truncated?"),
        Case("idx: too long", "any", both(images + b"\0"), "is it truncated?"),
        Case("idx: half a header", "any", both(images[:7]), "truncated inside its header"),
        Case("idx: 255 dimensions", "any", both(b"\0\0\x08\xff" + bytes(2000)), "truncated inside its header"),
        Case("idx: floats", "any", both(b"\0\0\x0d\x03" + images[4:]), "is not an idx file of bytes"),
        Case("idx: truncated gzip", "any", both(gzip.compress(images)[:100]), "damaged gzip"),
        Case("idx: 10^28 bytes declared", "any", both(idx((2**32 - 1,) * 3)), "bytes of memory"),
        Case("idx: bomb, 3 GB declared", "any", both(gzip.compress(idx((3 * 10**6, 32, 32), bytes(10**6)))),
             "bytes of memory"),
        Case("idx: bomb, little declared", "any", both(lambda: gzip.compress(images + bytes(400 * 2**20), 1)),
             "more than 3072 bytes of data"),
        Case("idx: labels are a link out of the folder", "any", linked, "is a link to"),
        Case("idx: labels are missing", "any", file(name, images), "its labels"),
        Case("idx: named pipe", "any", fifo(name), "its labels"),
    ]  # fmt: skip
    for kind, content in damaged(gzip.compress(images), 8, seed=3, start=10):
        found.append(Case(f"idx: {kind}", "any", both(content), either=True, value=GREY))
    return found


def batch(**more: object) -> dict:
    return {"data": FLAT, "labels": LABELS.tolist()} | more


def nested(make: type, levels: int) -> object:
    value = make(())
    for _ in range(levels):
        value = make((value, value))
    return value


def pickle_cases() -> list[Case]:
    deep = b"]" * 100_000 + b"a" * 99_999
    key = pickle.dumps(nested(tuple, 40), 2)[2:-1]
    text = b"X" + (10**7).to_bytes(4, "little") + b"x" * 10**7 + b"q\0"
    calls = b"c_codecs\nencode\nq\1h\0X\6\0\0\0latin1q\2\x86R" + b"h\1h\0h\2\x86R" * 1000
    bad = {
        "nested lists": pickle.dumps(batch(labels=nested(list, 60)), 2),
        "nested tuples": pickle.dumps(batch(data=nested(tuple, 60)), 2),
        "nested tuples as key": b"\x80\2}" + key + b"K\1s.",
        "nested lists as reference": b"\x80\4" + pickle.dumps(nested(list, 60), 2)[2:-1] + b"\x8c\1a\x93.",
        "100,000 lists in lists": b"\x80\2" + deep + b".",
        "a list in itself": b"\x80\2]q\0h\0a.",
        "one string, 1000 byte strings": b"\x80\2(" + text + calls + b"t.",
        "three million values": b"\x80\2](" + b"K\1" * 3_000_000 + b"e.",
        "a string of 2^63 bytes": b"\x80\4\x8d" + b"\xff" * 7 + b"\x7f.",
        "a number of 2 GB": b"\x80\2\x8b\xff\xff\xff\x7f.",
        "a number of 100,000 digits": b"I" + b"9" * 100_000 + b"\n.",
        "a persistent id": b"Pexecuted\n.",
        "an extension": b"\x80\2\x82\1.",
        "an object": b"\x80\2cbuiltins\nobject\n)\x81.",
        "an instance": b"(cos\nsystem\nS'touch executed'\no.",
        "empty": b"",
        "not a pickle": b"not a pickle",
        "no STOP": pickle.dumps(batch(), 2)[:-1],
        "objects as data": pickle.dumps(batch(data=np.array([Attack()], dtype=object)), 2),
        "a list as data": pickle.dumps(batch(data=[[0]]), 2),
        "long labels": pickle.dumps(batch(labels=["x" * 10**6] * 3), 2),
        "other shape": pickle.dumps(batch(data=FLAT[:, :9]), 2),
        "a list": pickle.dumps([1, 2], 2),
    }  # fmt: skip
    found = [
        Case(f"pickle: protocol {protocol}", "any", file(BATCH, pickle.dumps(batch(), protocol)), value=VALUE)
        for protocol in range(5)
    ]
    for protocol in range(6):
        for name, value in (("code", Attack()), ("code inside", batch(labels=[Attack()]))):
            content = pickle.dumps(value, protocol)
            phrase = f"{BATCH}: "
            found.append(Case(f"pickle: {name}, protocol {protocol}", "any", file(BATCH, content), phrase))
    found += [Case(f"pickle: {name}", "any", file(BATCH, content), BATCH) for name, content in bad.items()]
    names = pickle.dumps({"label_names": nested(tuple, 40)}, 2)

    def with_names(folder: Path) -> str:
        file("batches.meta", names)(folder)
        file(BATCH, pickle.dumps(batch(), 2))(folder)
        return "."

    found.append(Case("pickle: nested names of classes are ignored", "any", with_names, value=VALUE))
    for name, content in damaged(pickle.dumps(batch(), 2), 16, seed=4):
        found.append(Case(f"pickle: {name}", "any", file(BATCH, content), either=True))
    found.append(Case("pickle: one byte short", "any", file("data_batch_1.bin", bytes(3072)), "not a multiple"))
    return found


def cases() -> list[Case]:
    return [*npz_cases(), *idx_cases(), *pickle_cases()]
