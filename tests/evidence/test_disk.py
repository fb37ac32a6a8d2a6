"""Evidence on disk: the same tensors and the same results, and no file is left behind."""

import copy
import logging
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import normalize

from moon import Evidence, lenet, read
from moon.evidence import DiskTensor, Storage, chunks, disk as module, mapped, taken


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 40)


def on_disk(tensor, folder):
    rows = module.Rows(folder)
    for part in tensor.split(7):
        rows.add(part)
    return rows.tensor()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_tensor_on_disk_is_the_same_tensor(tmp_path, small_chunks, dtype):
    expected = torch.randn(50, 4).mul(100).to(dtype)
    found = on_disk(expected, tmp_path)
    assert isinstance(found, DiskTensor)
    assert found.folder == tmp_path
    assert torch.equal(found, expected)
    found.release()
    assert torch.equal(found, expected)
    assert type(found + found) is type(found[3:]) is torch.Tensor
    assert not list(tmp_path.iterdir())  # the file has no name


def test_a_tensor_on_disk_is_copied_and_pickled_as_an_ordinary_one(tmp_path):
    tensor = on_disk(torch.arange(12.0).view(6, 2), tmp_path)
    for again in (copy.deepcopy(tensor), pickle.loads(pickle.dumps(tensor))):
        assert type(again) is torch.Tensor
        assert torch.equal(again, tensor)


def test_chunks_are_the_same_in_memory_and_on_disk(tmp_path, small_chunks):
    x, labels = torch.randn(25, 4), torch.arange(25)
    for tensor in (x, on_disk(x, tmp_path)):
        parts = list(chunks(tensor, labels))
        assert [len(part) for part, _ in parts] == [10, 10, 5]
        assert torch.equal(torch.cat([part for part, _ in parts]), x)
        assert torch.equal(torch.cat([part for _, part in parts]), labels)
    assert next(iter(chunks(x[:3])))[0].data_ptr() == x.data_ptr()


def test_functions_of_rows(tmp_path, small_chunks):
    x = torch.randn(25, 4)
    stored = on_disk(x, tmp_path)
    assert torch.equal(mapped(normalize, stored), normalize(x))
    assert isinstance(mapped(normalize, stored), DiskTensor)
    assert isinstance(mapped(torch.Tensor.double, stored), DiskTensor)
    assert mapped(torch.Tensor.float, x) is x
    numbers = mapped(lambda part: part.sum(1), stored)  # single numbers stay in memory
    assert not isinstance(numbers, DiskTensor)
    assert torch.equal(numbers, x.sum(1))
    for index in (torch.tensor([24, 0, 0, -13]), x[:, 0] > 0, torch.tensor([], dtype=torch.int64)):
        assert torch.equal(taken(stored, index), x[index])
        assert torch.equal(taken(x, index), x[index])


@pytest.mark.parametrize("index", [torch.tensor([25]), torch.tensor([-26]), torch.ones(30) > 0, torch.ones(3) > 0])
def test_rows_that_do_not_exist_are_an_error(tmp_path, index):
    for x in (torch.randn(25, 4), on_disk(torch.randn(25, 4), tmp_path)):
        with pytest.raises(IndexError):
            taken(x, index)


def test_read_keeps_large_evidence_on_disk(tmp_path, caplog):
    torch.manual_seed(0)
    model, x, y = lenet(10), torch.randn(30, 1, 28, 28), torch.arange(30) % 10
    loader = [(x[:16], y[:16]), (x[16:], y[16:])]
    expected = read(model, loader)
    with caplog.at_level(logging.INFO, "moon"):
        found = read(model, loader, storage=Storage(30, tmp_path, memory_gib=0, what="images"))
    assert isinstance(found.features, DiskTensor)
    assert isinstance(found.logits, DiskTensor)
    for name in ("logits", "features", "labels", "prediction", "unit_features"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert found.unit_features is found.unit_features
    (line,) = caplog.messages
    assert "the evidence of 30 images takes 0.0119 MiB, more than the 0 MiB" in line
    assert f"temporary files in {tmp_path}" in line
    assert not list(tmp_path.iterdir())
    assert not isinstance(read(model, loader, storage=Storage(30, tmp_path)).features, DiskTensor)


def test_the_mean_of_two_views_on_disk(tmp_path, small_chunks):
    views = [Evidence(torch.randn(25, 3), torch.randn(25, 4), 3) for _ in range(2)]
    stored = [replace(v, logits=on_disk(v.logits, tmp_path), features=on_disk(v.features, tmp_path)) for v in views]
    found, expected = Evidence.mean(stored), Evidence.mean(views)
    assert isinstance(found.features, DiskTensor)
    assert torch.equal(found.features, expected.features)
    assert torch.equal(found.logits, expected.logits)


def test_too_little_space_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(module.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 2**30})())
    storage = Storage(2_000_000, tmp_path, what="training images")
    with pytest.raises(ValueError, match=r"2,000,000 training images needs 60\.3 GiB .* has 1 GiB free; free some"):
        storage.place(torch.zeros(1, 1000), torch.zeros(1, 2048))


def test_a_folder_that_cannot_be_written_is_not_used(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(module.os, "access", lambda *_: False)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "other"))
    (tmp_path / "other").mkdir()
    with caplog.at_level(logging.INFO, "moon"):
        place = Storage(1000, tmp_path, memory_gib=0).place(torch.zeros(1, 10), torch.zeros(1, 10))
    assert place == tmp_path / "other"
    assert f"files in {tmp_path / 'other'} ({tmp_path} cannot be written to), at most" in caplog.text


@pytest.mark.parametrize(
    ("kind", "level"), [("tmpfs", "WARNING"), ("ramfs", "WARNING"), ("ext4", "INFO"), (None, "INFO")]
)
@pytest.mark.parametrize("is_writable", [True, False])
def test_a_folder_in_memory_is_said(kind, level, is_writable, tmp_path, monkeypatch, caplog):
    device = tmp_path.stat().st_dev
    mount = f"36 35 {os.major(device)}:{os.minor(device)} / /x rw shared:7 - {kind} none rw,size=4k\n"
    mounts = "22 27 999:9 / /sys rw - tmpfs tmpfs rw\n" + (mount if kind else "")
    monkeypatch.setattr(module, "_MOUNTS", tmp_path / "mountinfo")
    (tmp_path / "mountinfo").write_text(mounts)
    monkeypatch.setattr(module.os, "access", lambda *_: is_writable)
    monkeypatch.setattr(module.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    for name in ("run", "temporary"):
        (tmp_path / name).mkdir()
    with caplog.at_level(logging.INFO, "moon"):
        Storage(1000, tmp_path / "run", memory_gib=0).place(torch.zeros(1, 10), torch.zeros(1, 10))
    (record,) = caplog.records
    advice = "write to a disk" if is_writable else "set TMPDIR to a folder on a disk"
    said = f"; this saves no memory, because that folder is in memory as well ({kind}): {advice}"
    assert record.levelname == level
    assert record.getMessage().endswith(said if level == "WARNING" else "which are deleted afterwards")


@pytest.mark.skipif(not os.path.ismount("/dev/shm"), reason="needs a tmpfs")
def test_a_real_tmpfs_is_found():
    assert module._memory_type(Path("/dev/shm")) == "tmpfs"
    assert module._memory_type(Path("/proc")) == ""
