import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from moon.training import RunLocked, is_locked, locked


@pytest.mark.slow
def test_a_second_process_is_rejected(tmp_path):
    code = "import sys, pathlib; from moon.training import locked\nwith locked(pathlib.Path(sys.argv[1])): input()"
    arguments = [sys.executable, "-c", code + "\n", str(tmp_path)]
    with locked(tmp_path), subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as other:
        assert b"RunLocked" in other.communicate(timeout=600)[1]


def test_a_path_that_is_not_a_folder_is_rejected(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match="is a file or inside one"), locked(path):
            pass


def test_the_lock_is_released_at_the_end(tmp_path):
    with locked(tmp_path), pytest.raises(RunLocked, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_is_locked_does_not_need_the_lock(tmp_path):
    assert not is_locked(tmp_path / "nowhere")
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
    assert not is_locked(tmp_path)


def test_deleting_the_lock_file_does_not_release_the_lock(tmp_path):
    with locked(tmp_path):
        (tmp_path / "lock").unlink()
        assert is_locked(tmp_path)
        with pytest.raises(RunLocked, match="another process"), locked(tmp_path):
            pass


def test_the_lock_of_an_earlier_version_is_respected(tmp_path):
    import fcntl

    with (tmp_path / "lock").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert is_locked(tmp_path)
        with pytest.raises(RunLocked, match="another process"), locked(tmp_path):
            pass


def test_a_lent_lock_is_shared_in_its_own_thread_only(tmp_path):
    def enter():
        with locked(tmp_path):
            pass

    with locked(tmp_path, lend=True):
        enter()
        assert is_locked(tmp_path)  # it is still held
        with ThreadPoolExecutor(1) as other, pytest.raises(RunLocked):
            other.submit(enter).result(600)
    enter()


def test_a_link_in_place_of_the_lock_file_is_not_followed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "precious").write_text("precious")
    (tmp_path / "run" / "lock").symlink_to(tmp_path / "precious")
    with locked(tmp_path / "run"):
        assert is_locked(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_system_without_locks_is_reported(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", no_locks)
    with pytest.raises(ValueError, match="the file system does not support locks"), locked(tmp_path):
        pass
    assert not is_locked(tmp_path)
