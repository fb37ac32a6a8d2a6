"""NVIDIA's Multi-Process Service is started and stopped. A script replaces NVIDIA's program."""

import os
import signal
import subprocess
import sys
import time

import pytest

from moon.grid import mps

CONTROL = """#!/bin/sh
folder="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -d ]; then echo "started $folder" >> "$LOG"; exit $EXIT_CODE; fi
read command; echo "$command $folder" >> "$LOG"
"""


@pytest.fixture
def log(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-cuda-mps-control"
    program.write_text(CONTROL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    monkeypatch.setenv("EXIT_CODE", "0")
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    monkeypatch.setattr(mps, "_TRY", "")
    return tmp_path / "log"


def events(log):
    return [line.split()[0] for line in log.read_text().splitlines()]


def test_a_service_that_we_started_is_stopped_at_the_end(log):
    with mps.shared_gpus() as environment:
        assert events(log) == ["started"]
        assert os.path.isdir(environment["CUDA_MPS_PIPE_DIRECTORY"])
    assert events(log) == ["started", "quit"]
    assert not os.path.exists(environment["CUDA_MPS_PIPE_DIRECTORY"])


def test_a_service_that_does_not_work_is_stopped_and_not_used(log, monkeypatch):
    monkeypatch.setattr(mps, "_TRY", "raise SystemExit(1)")
    with mps.shared_gpus() as environment:
        assert environment == {}
    assert events(log) == ["started", "quit"]


def test_a_running_service_is_used(log, monkeypatch):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/running")
    with mps.shared_gpus() as environment:
        assert environment == {"CUDA_MPS_PIPE_DIRECTORY": "/running"}
    assert not log.exists()


@pytest.mark.slow
def test_the_service_is_stopped_even_if_our_process_is_killed(log):
    script = (
        "import time; from moon.grid import mps; mps._TRY = ''\n"
        "with mps.shared_gpus(): print(flush=True); time.sleep(3600)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline()
        process.send_signal(signal.SIGKILL)
    _wait_until(lambda: events(log) == ["started", "quit"])


def _wait_until(condition, seconds=1800):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "timed out"
        time.sleep(0.05)
