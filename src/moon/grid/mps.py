"""Several processes on one GPU at the same time, through NVIDIA's Multi-Process Service (MPS)."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

_TRY = "import torch; torch.zeros(1, device='cuda').item()"
_QUIT_AT_EOF = 'cat > /dev/null; echo quit | "$0"'  # its input ends when this process ends, even if it is killed


@contextmanager
def shared_gpus() -> Iterator[dict[str, str]]:
    """Start MPS, without which a GPU never runs kernels of two processes at a time, or use a running one.

    Yields environment variables for the processes that should share GPUs; empty if MPS is not available.
    """
    if running := {key: value for key, value in os.environ.items() if key.startswith("CUDA_MPS_PIPE")}:
        yield running
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}
        return
    with TemporaryDirectory(prefix="moon-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | own

        def succeeds(*command: str) -> bool:
            try:
                return not subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode
            except subprocess.TimeoutExpired:
                return False

        if not succeeds(control, "-d"):
            yield {}
            return
        with subprocess.Popen(
            ["sh", "-c", _QUIT_AT_EOF, control],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # so that Ctrl-C does not reach it
        ):  # leaving the block closes its input and waits for it
            yield own if succeeds(sys.executable, "-c", _TRY) else {}
