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


@contextmanager
def shared_gpus() -> Iterator[dict[str, str]]:
    """A service, as the environment of the processes that shall use it: the one that is there, or one of our own while
    this lasts; empty where there can be none.

    Without it the GPU runs the kernels of one process after those of another, never beside them.
    """
    if there := {key: value for key, value in os.environ.items() if key.startswith("CUDA_MPS_PIPE")}:
        yield there
        return
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield {}
        return
    with TemporaryDirectory(prefix="moon-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | own

        def succeeds(*command: str, told: bytes = b"") -> bool:
            try:
                return (
                    subprocess.run(command, input=told, env=environment, capture_output=True, timeout=60).returncode
                    == 0
                )
            except subprocess.TimeoutExpired:
                return False

        try:
            yield own if succeeds(control, "-d") and succeeds(sys.executable, "-c", _TRY) else {}
        finally:
            succeeds(control, told=b"quit\n")
