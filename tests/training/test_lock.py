import errno
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

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
    with pytest.raises(ValueError, match="the file system does not support locks"), locked(tmp_path / "run"):
        pass
    assert not list(tmp_path.iterdir())


def enter(folder, write=lambda: None, error=None):
    with suppress(ZeroDivisionError), locked(folder):
        write()
        if error is not None:
            raise error


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_folder_that_nothing_is_written_to_is_removed_again(tmp_path, error):
    enter(tmp_path / "runs" / "run", error=error)
    assert not list(tmp_path.iterdir())
    (tmp_path / "mine").mkdir()  # not created by the call
    enter(tmp_path / "mine", error=error)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]
    (tmp_path / "mine" / "lock").touch()
    enter(tmp_path / "mine", error=error)
    assert (tmp_path / "mine" / "lock").exists()


@pytest.mark.parametrize("error", [None, ZeroDivisionError()])
def test_a_folder_with_anything_else_in_it_is_kept(tmp_path, error):
    (tmp_path / "runs").mkdir()
    for number, write in enumerate((lambda run: (run / ".x").touch(), lambda run: (run / "checkpoints").mkdir())):
        run = tmp_path / "runs" / str(number)
        enter(run, lambda run=run, write=write: write(run), error)
        assert len(list(run.iterdir())) == 2
    run = tmp_path / "new" / "run"
    enter(run, (run.parent / "other").mkdir, error)
    assert [path.name for path in run.parent.iterdir()] == ["other"]


def test_one_at_a_time_has_the_lock_although_others_remove_the_folder(tmp_path):
    run, inside = tmp_path / "runs" / "run", []

    def enter(_):
        try:
            with locked(run):
                inside.append(1)
                assert len(inside) == 1
                assert (run / "lock").exists()
                inside.pop()
                raise ZeroDivisionError
        except (RunLocked, ZeroDivisionError) as error:
            return type(error)

    with ThreadPoolExecutor(4) as threads:
        assert ZeroDivisionError in set(threads.map(enter, range(200)))
