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
    """A service of its own, as the environment of the processes that shall use it; empty where there can be none.

    Without it the GPU runs the kernels of one process after those of another, never beside them.
    """
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None or "CUDA_MPS_PIPE_DIRECTORY" in os.environ:  # nobody has one, or there is one already
        yield {}
        return
    with TemporaryDirectory(prefix="moon-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        environment = os.environ | own
        subprocess.run([control, "-d"], env=environment, capture_output=True)
        try:
            works = subprocess.run([sys.executable, "-c", _TRY], env=environment, capture_output=True).returncode == 0
            yield own if works else {}
        finally:
            subprocess.run([control], input=b"quit\n", env=environment, capture_output=True)
