import errno
import os
import subprocess
import sys

import numpy as np
import pytest

from moon.errors import DiskFull
from moon.files import (
    full_disk,
    open_to_append,
    own_folder,
    write_arrays,
    write_atomic,
    write_json,
    write_text,
    writing,
)


def test_a_failed_write_keeps_the_old_file_and_leaves_no_part(tmp_path):
    write_text(tmp_path / "a.txt", "old")

    def fail(partial):
        partial.write_text("new")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(tmp_path / "a.txt", fail)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "old")]


def test_two_processes_may_write_the_same_file(tmp_path):
    path = tmp_path / "a.txt"

    def write(partial):
        partial.write_text("first")
        write_text(path, "second")  # another process, while this one writes

    write_atomic(path, write)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.txt", "first")]


def test_the_error_of_a_full_disk_names_the_file(tmp_path):
    with pytest.raises(DiskFull) as full, writing(tmp_path / "log"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert full.value.filename == str(tmp_path / "log")
    with pytest.raises(DiskFull) as outer, writing(tmp_path / "other"):
        raise full.value
    assert outer.value is full.value
    with pytest.raises(PermissionError), writing(tmp_path / "log"):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_a_full_disk_is_recognised_in_the_chain_of_errors():
    try:
        try:
            raise OSError(errno.EDQUOT, "Disk quota exceeded", "/data/x")
        except OSError:
            raise ValueError("cannot save")  # noqa: B904
    except ValueError as error:
        found = full_disk(error)
    assert (found.errno, found.filename) == (errno.EDQUOT, "/data/x")
    assert full_disk(ValueError("the dataset is full of holes")) is None


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize(
    "write",
    [
        lambda path: write_text(path, "new"),
        lambda path: write_json(path, {}),
        lambda path: write_arrays(path, {"x": np.zeros(1)}),
        lambda path: write_atomic(path, lambda partial: (partial.mkdir(), (partial / "a").write_text("new"))),
        lambda path: open_to_append(path).close(),
    ],
    ids=["text", "json", "arrays", "folder", "append"],
)
def test_no_link_is_followed(tmp_path, write):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    for name in ("a", ".a.part", ".moon-00000000.part"):
        (tmp_path / "run" / name).symlink_to(tmp_path / "precious")
    write(tmp_path / "run" / "a")
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "run" / "a").is_symlink()


def test_a_linked_folder_is_rejected(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="checkpoints: is a link"):
        own_folder(tmp_path / "checkpoints")
    assert own_folder(tmp_path / "a" / "b").is_dir()


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_only_regular_files_are_appended_to(tmp_path, make):
    make(tmp_path / "log")
    with pytest.raises(ValueError, match="log: is not a regular file"):
        open_to_append(tmp_path / "log")


def test_what_a_killed_process_left_is_removed_by_the_next_write(tmp_path):
    code = """
import os, pathlib, sys
from moon.files import write_atomic
write_atomic(pathlib.Path(sys.argv[1]), lambda partial: (partial.write_text("half"), os._exit(9)))
"""
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], timeout=600).returncode == 9
    assert len(names(tmp_path)) == 1
    write_text(tmp_path / "b", "new")
    assert names(tmp_path) == ["b"]


def test_what_a_live_process_is_writing_is_not_removed(tmp_path):
    def write(partial):
        write_text(tmp_path / "b", "meanwhile")
        partial.write_text("whole")

    write_atomic(tmp_path / "a", write)
    assert names(tmp_path) == ["a", "b"]
    assert (tmp_path / "a").read_text() == "whole"


def test_files_are_written_where_there_are_no_locks(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    write_text(tmp_path / "a", "new")
    assert names(tmp_path) == ["a"]
