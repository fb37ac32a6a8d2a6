import subprocess
import sys

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
        assert not is_locked(tmp_path, "job")
        with locked(tmp_path, "job"):
            assert is_locked(tmp_path, "job")
    assert not is_locked(tmp_path)
