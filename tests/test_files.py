import errno
import os
import signal
import subprocess
import sys

import pytest

from moon.errors import DiskFull
from moon.files import full_disk, write_atomic, write_text, writing


def test_text_is_utf_8(tmp_path):
    write_text(tmp_path / "a.txt", "±✓")
    assert (tmp_path / "a.txt").read_bytes() == "±✓".encode()


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


def test_what_a_killed_process_left_is_removed(tmp_path):
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(tmp_path / "a.txt")], check=False, env=os.environ, timeout=60
    )
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert left.name.startswith(".a.txt.")
    (tmp_path / ".a.txt.elsewhere.1.0.part").mkdir()  # of another machine: it may still be written
    write_text(tmp_path / "a.txt", "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".a.txt.elsewhere.1.0.part", "a.txt"]


_KILLED = """
import os, signal, sys
from pathlib import Path
from moon.files import write_atomic

def write(partial):
    partial.write_text("unfinished")
    os.kill(os.getpid(), signal.SIGKILL)

write_atomic(Path(sys.argv[1]), write)
"""


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
