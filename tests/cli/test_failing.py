"""Exit codes and messages of errors."""

import errno

import pytest

from moon import files
from moon.cli import methods
from moon.cli.failing import explained
from moon.errors import DamagedCheckpoint, DataError, DiskFull, Diverged, RankLost, RunLocked
from moon.files import write_json


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("x"), 3),
        (DamagedCheckpoint("x"), 4),
        (Diverged("x"), 5),
        (RunLocked("x"), 6),
        (DiskFull("x"), 7),
        (RankLost("x"), 8),
        (ValueError("x"), 2),
        (FileNotFoundError("x"), 3),
        (RuntimeError("x"), 1),
    ],
)
def test_exit_codes(error, code):
    assert explained(error)[0] == code


def test_parameters_become_flags():
    assert explained(ValueError("too long (delta_t_steps)")) == (2, "too long (--delta-t)")
    assert explained(ValueError("too few images (accept)")) == (2, "too few images (--accept)")
    assert explained(ValueError("lr_start must be finite, not nan")) == (2, "--lr must be finite, not nan")
    assert explained(ValueError("sparsity must be below 1")) == (2, "sparsity must be below 1")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB"),
    ],
)
def test_too_little_memory_says_what_needs_less(error):
    code, text = explained(error)
    assert code == 1
    assert text == (
        "out of memory; training with smaller batches (--batch-size) or a smaller network needs less (--debug shows "
        "the traceback)"
    )


@pytest.mark.parametrize(
    "error",
    [
        ValueError("device 'cuda' cannot be used (CUDA error: out of memory); choose another one, such as cpu"),
        RankLost("rank 1 of 2 was lost (CUDA out of memory)"),
        DataError("out of memory/train.npz: no such file"),
    ],
)
def test_a_message_about_something_else_that_names_memory_is_kept(error):
    assert explained(error)[1] == str(error)


class SafetensorError(Exception):
    """As safetensors raises it."""


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
        RuntimeError("[enforce fail at inline_container.cc] file write failed: No space left on device"),
    ],
)
@pytest.mark.parametrize("is_wrapped", [False, True])
def test_a_full_disk_is_one_line_with_the_path_and_exit_code_7(moon, monkeypatch, tmp_path, error, is_wrapped):
    def fail(_):
        raise error

    def act(_):
        monkeypatch.setattr(files, "sync", fail)
        try:
            write_json(tmp_path / "out" / "result.json", {})
        except OSError as full:
            if is_wrapped:
                raise ValueError("cannot write the result") from full
            raise

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(methods, "act", act)
    text = f"moon methods: {tmp_path}/out/result.json: the disk is full; free some space, then try again\n"
    assert moon("methods") == (7, "", text)
    assert list((tmp_path / "out").iterdir()) == []  # the partial file is removed
