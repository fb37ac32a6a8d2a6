"""The software and hardware of a run, and whether cuDNN is deterministic."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from moon import __version__


def software() -> dict[str, str]:
    """The versions of moon, torch and Python."""
    return {"moon": __version__, "torch": torch.__version__, "python": platform.python_version()}


def hardware(device: torch.device | str) -> str:
    """The name of the GPU, or the CPU's architecture and number of threads."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"


@contextmanager
def cudnn_mode(exact: bool) -> Iterator[None]:
    """Context in which cuDNN uses deterministic kernels (`exact`) or the fastest, whose sums have no fixed order."""
    before = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = exact, not exact
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = before
