"""Files that would need too much memory or time, and things that are no regular files."""

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from moon.data import DataError, DataSet, find_benchmark, load, read_any, read_cifar, read_folders, read_idx, read_list
from moon.data.limits import read_bytes

GIGABYTE = 10**9


@pytest.fixture
def root(tmp_path):
    (tmp_path / "mine").mkdir()
    return tmp_path


def sparse(path, size, start=b""):
    """A file of this length that occupies nothing on disk."""
    with path.open("wb") as file:
        file.write(start)
        file.truncate(size)


def header(shape, kind="|u1"):
    np.lib.format.write_array_header_1_0(
        stream := io.BytesIO(), {"descr": kind, "fortran_order": False, "shape": shape}
    )
    return stream.getvalue()


def npz(path, **members):
    """An .npz file of raw members, with declared sizes of (content, size)."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, content in members.items():
            archive.writestr(f"{name}.npy", content)
    return path


def test_an_npz_bomb_is_refused_before_it_is_unpacked(root, monkeypatch):
    images = header((2**15, 32, 32, 3)) + bytes(2**15 * 3072)
    path = npz(root / "mine" / "train.npz", images=images, labels=header((2**15,), "<i8") + bytes(2**18))
    assert path.stat().st_size < 10**6
    assert len(load(root, "mine", "train").labels) == 2**15
    monkeypatch.setenv("MOON_MAX_BYTES", "50000000")
    with pytest.raises(
        DataError, match=r"train.npz: needs 100,\d+,\d+ bytes of memory, more than the 50,000,000.*MOON_MAX_BYTES=100"
    ):
        load(root, "mine", "train")


def test_a_large_file_is_read(root, monkeypatch):
    images = np.random.default_rng(0).integers(0, 256, (100, 32, 32, 3), dtype=np.uint8)
    np.savez(root / "mine" / "train.npz", images=images, labels=np.arange(100))
    monkeypatch.setenv("MOON_MAX_BYTES", "1000")
    assert len(load(root, "mine", "train").labels) == 100


def idx(path, *shape, content=b""):
    path.write_bytes(
        gzip.compress(b"\0\0\x08" + bytes([len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + content)
    )


def test_an_idx_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    images, labels = tmp_path / "train-images-idx3-ubyte.gz", tmp_path / "train-labels-idx1-ubyte.gz"
    idx(images, 3 * 10**6, 32, 32, content=bytes(10**6))
    idx(labels, 3 * 10**6)
    with pytest.raises(DataError, match=r"images-idx3-ubyte.gz: needs 3,072,000,016 bytes of memory"):
        read_idx(tmp_path, "train")
    idx(images, 10, 32, 32, content=bytes(50 * 2**20))  # more than it declares
    with pytest.raises(DataError, match=r"more than 10240 bytes of data, but its header says \(10, 32, 32\)"):
        read_idx(tmp_path, "train")
    sparse(tmp_path / "t10k-images-idx3-ubyte", 3 * GIGABYTE, b"\0\0\x08\3" + struct.pack(">3I", 3 * 10**6, 32, 32))
    sparse(tmp_path / "t10k-labels-idx1-ubyte", 3 * GIGABYTE)
    with pytest.raises(DataError, match=r"t10k-images-idx3-ubyte: needs 3,072,000,016 bytes"):
        read_idx(tmp_path, "test")


def batch(count=2):
    return pickle.dumps({"data": np.zeros((count, 3072), np.uint8), "labels": [0] * count}, 2)


def tar(path, *members, mode="w:gz"):
    with tarfile.open(path, mode, compresslevel=1) if mode == "w:gz" else tarfile.open(path, mode) as archive:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def test_the_total_of_an_archive_is_bounded(tmp_path, monkeypatch):
    path = tar(tmp_path / "a.tar.gz", *((f"other_{n}", bytes(10**7)) for n in range(5)), ("data_batch_1", batch()))
    assert path.stat().st_size < 10**6
    assert len(read_cifar(path, "train").labels) == 2
    monkeypatch.setenv("MOON_MAX_BYTES", "30000000")
    with pytest.raises(DataError, match=r"a.tar.gz: needs .* bytes of memory, more than the 30,000,000 allowed"):
        read_cifar(path, "train")


def test_what_is_no_regular_file_is_refused_at_once(tmp_path):
    for path in ("benchmarks.toml", "mine/train.npz", "cifar/data_batch_1", "a.tar", "train_32x32.mat"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        os.mkfifo(tmp_path / path)
    for use in (
        lambda: find_benchmark(tmp_path, "digits"),
        lambda: load(tmp_path, "mine", "train"),
        lambda: read_any(tmp_path / "cifar", "train"),
        lambda: read_any(tmp_path / "a.tar", "train"),
        lambda: read_any(tmp_path / "train_32x32.mat", "train"),
    ):
        with pytest.raises(DataError, match="is a named pipe, socket or device, not a regular file"):
            use()


def test_lists_and_folders_are_bounded(tmp_path, monkeypatch):
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "a.png")
    with pytest.raises(DataError, match=r"needs 30,000,000,000 bytes of memory"):
        read_folders(tmp_path, 100_000)
    sparse(tmp_path / "a.txt", 3 * GIGABYTE)
    with pytest.raises(DataError, match=r"a.txt: needs 3,000,000,000 bytes"):
        read_list(tmp_path / "a.txt")
    (tmp_path / "b.txt").write_text("cat/a.png 0\n" * 5000)
    assert len(read_list(tmp_path / "b.txt", size=8).labels) == 5000
    monkeypatch.setenv("MOON_MAX_BYTES", "1000000")
    with pytest.raises(DataError, match=r"b.txt: needs 1,280,000 bytes"):
        read_list(tmp_path / "b.txt", size=8)


@pytest.mark.parametrize("text", ["", "0", "-1", "1e9", "many", "१"])
def test_the_limit_must_be_a_number(tmp_path, monkeypatch, text):
    monkeypatch.setenv("MOON_MAX_BYTES", text)
    (tmp_path / "a").write_bytes(b"")
    with pytest.raises(DataError, match=r"MOON_MAX_BYTES=.* must be a number of bytes"):
        read_bytes(tmp_path / "a")


def test_json_is_refused_if_it_is_nested_too_deeply_or_no_regular_file(tmp_path):
    from moon.records import read_json

    (tmp_path / "a.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        read_json(tmp_path / "a.json")
    os.mkfifo(tmp_path / "b.json")
    with pytest.raises(ValueError, match=r"b.json: is a named pipe"):
        read_json(tmp_path / "b.json")
    (tmp_path / "c.json").write_text(json.dumps({"a": 1}))
    assert read_json(tmp_path / "c.json") == {"a": 1}


def test_a_batch_larger_than_the_set_is_reported(caplog):
    from moon.data import BENCHMARKS, training_batches

    dataset = DataSet(np.zeros((320, 28, 28, 1), np.uint8), np.arange(320) % 10)
    batches = training_batches(dataset, BENCHMARKS["mnist"], "cpu", batch_size=300_000, seed=0)
    assert batches.sizes == [320]
    assert caplog.messages == [
        "batch_size is 300,000, but there are only 320 training images: every step uses all of them"
    ]
