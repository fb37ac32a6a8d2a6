"""The service that lets processes share a GPU is started and stopped; here a script stands for NVIDIA's program."""

import os
import signal
import subprocess
import sys
import time

import pytest

from moon.grid import mps

CONTROL = """#!/bin/sh
folder="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -d ]; then echo "started $folder" >> "$NOTES"; exit $REFUSES; fi
read word; echo "$word $folder" >> "$NOTES"
"""


@pytest.fixture
def notes(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    monkeypatch.setenv("REFUSES", "0")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "_TRY", "")
    return tmp_path / "notes"


def words(notes):
    return [line.split()[0] for line in notes.read_text().splitlines()]


def test_a_service_of_our_own_ends_with_us(notes):
    with mps.shared_gpus() as environment:
        assert words(notes) == ["started"]
        assert os.path.isdir(environment["CUDA_MPS_PIPE_DIRECTORY"])
    assert words(notes) == ["started", "quit"]
    assert not os.path.exists(environment["CUDA_MPS_PIPE_DIRECTORY"])


def test_one_that_does_not_work_is_stopped_and_not_used(notes, monkeypatch):
    monkeypatch.setattr(mps, "_TRY", "raise SystemExit(1)")
    with mps.shared_gpus() as environment:
        assert environment == {}
    assert words(notes) == ["started", "quit"]


def test_one_that_does_not_start_is_not_used(notes, monkeypatch):
    monkeypatch.setenv("REFUSES", "1")
    with mps.shared_gpus() as environment:
        assert environment == {}
    assert words(notes) == ["started"]


def test_one_that_is_there_is_used(notes, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/there")
    with mps.shared_gpus() as environment:
        assert environment == {"CUDA_MPS_PIPE_DIRECTORY": "/there"}
    assert not notes.exists()


def test_it_ends_even_if_we_are_killed(notes):
    script = (
        "import time; from moon.grid import mps; mps._TRY = ''\n"
        "with mps.shared_gpus(): print(flush=True); time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    _until(lambda: words(notes) == ["started", "quit"])


def _until(happens, seconds=1800):
    end = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)
