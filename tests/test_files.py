import errno

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
