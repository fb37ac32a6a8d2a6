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
_QUIT_IN_THE_END = 'cat > /dev/null; echo quit | "$0"'  # the end of its input is ours, however we end


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

        def succeeds(*command: str) -> bool:
            try:
                return not subprocess.run(command, env=environment, capture_output=True, timeout=60).returncode
            except subprocess.TimeoutExpired:
                return False

        if not succeeds(control, "-d"):
            yield {}
            return
        with subprocess.Popen(
            ["sh", "-c", _QUIT_IN_THE_END, control],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is not for it
        ):  # leaving closes its input and waits for it
            yield own if succeeds(sys.executable, "-c", _TRY) else {}
