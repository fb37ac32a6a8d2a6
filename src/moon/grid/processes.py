"""Run a grid in processes on this machine."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from moon.files import open_to_append
from moon.run.machine import cores


@dataclass
class _Process:
    """A worker process, which executes one run after another."""

    popen: subprocess.Popen[bytes]
    device: str
    warnings: list[str] = field(default_factory=list)  # not yet taken by the grid
    _rest: bytes = b""  # the beginning of a line

    def send(self, folder: Path) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(f"{folder}\n".encode())
        self.popen.stdin.flush()

    def answered(self) -> bool:
        """Read what it has written: whether it has finished its run. False while it is busy and after it has exited."""
        assert self.popen.stdout is not None
        while select.select([self.popen.stdout], [], [], 0)[0]:
            if not (found := os.read(self.popen.stdout.fileno(), 4096)):
                break  # it has exited
            *lines, self._rest = (self._rest + found).split(b"\n")
            self.warnings += [line.decode(errors="replace") for line in lines if line]
            if b"" in lines:
                return True
        return False


@dataclass
class Processes:
    """Worker processes, each with its share of the cores; GPUs are assigned in turn and can be shared.

    A process that has finished its run takes the next one, so libraries, data and compiled kernels are loaded once. If
    `threads` is None, each run has those that suit it, see `threads_for`, at most a process's share of the cores. The
    `environment` is added to the current one.
    """

    places: int
    data: Path
    devices: list[str]
    threads: int | None = None
    checkpoint_seconds: float = 30.0
    exact: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    _idle: list[_Process] = field(default_factory=list)
    _all: list[_Process] = field(default_factory=list)

    def start(self, folder: Path) -> _Process:
        while self._idle:
            process = self._idle.pop()
            with suppress(BrokenPipeError):  # it has exited in the meantime
                process.send(folder)
                return process
        self._all = [process for process in self._all if process.popen.poll() is None]
        busy = [process.device for process in self._all]
        device = min(self.devices, key=busy.count)  # the first of the least busy ones
        command = [sys.executable, "-m", "moon.grid.worker", "--data", str(self.data), "--device", device]
        command += ["--checkpoint-seconds", str(self.checkpoint_seconds), *["--inexact"] * (not self.exact)]
        command += ["--choose-threads"] * (self.threads is None)
        threads = self.threads or max(1, cores() // self.places)
        # In a separate session, so that Ctrl-C reaches the driver only, which then stops its workers.
        with open_to_append(folder / "worker.log") as log:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                env=os.environ | self.environment | {"OMP_NUM_THREADS": str(threads)},
            )
        process = _Process(popen, device)
        self._all.append(process)
        process.send(folder)
        return process

    def ended(self, handle: _Process) -> str | None:
        if handle.answered():
            self._idle.append(handle)
            return ""
        code = handle.popen.poll()
        if code is None:
            return None
        if code == 0:
            return ""
        return f"killed by signal {-code}" if code < 0 else f"worker exited with code {code}"

    def warnings(self, handle: _Process) -> list[str]:
        taken, handle.warnings = handle.warnings, []
        return taken

    def stop(self, handles: list[_Process]) -> None:
        processes = [process.popen for process in self._all]  # also one that a signal kept from becoming a handle
        self._idle.clear()
        self._all.clear()
        for popen in processes:
            if popen.poll() is None:
                popen.terminate()  # not SIGINT, which background processes may ignore
        for popen in processes:
            try:
                popen.wait(20)
            except subprocess.TimeoutExpired:
                popen.kill()
                popen.wait()
            for pipe in (popen.stdin, popen.stdout):
                assert pipe is not None
                with suppress(BrokenPipeError):
                    pipe.close()
