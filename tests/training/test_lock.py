import subprocess
import sys

import pytest

from moon.training import RunLocked, is_locked, locked


def test_a_second_process_is_refused(tmp_path):
    code = "import sys, pathlib; from moon.training import locked\nwith locked(pathlib.Path(sys.argv[1])): input()"
    arguments = [sys.executable, "-c", code + "\n", str(tmp_path)]
    with locked(tmp_path), subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE) as other:
        assert b"RunLocked" in other.communicate(timeout=60)[1]


def test_a_file_in_the_way_is_said(tmp_path):
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(ValueError, match="a file is in the way"), locked(path):
            pass


def test_it_is_free_again_afterwards(tmp_path):
    with locked(tmp_path), pytest.raises(RunLocked, match="another process"), locked(tmp_path):
        pass
    with locked(tmp_path):
        pass


def test_whether_it_is_held_can_be_asked(tmp_path):
    assert not is_locked(tmp_path / "nowhere")
    assert not is_locked(tmp_path)
    with locked(tmp_path):
        assert is_locked(tmp_path)
        assert not is_locked(tmp_path, "job")
        with locked(tmp_path, "job"):
            assert is_locked(tmp_path, "job")
    assert not is_locked(tmp_path)
