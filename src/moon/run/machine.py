"""The software and hardware of a run, its number of CPU threads, and whether cuDNN is deterministic."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from moon import __version__
from moon.data import Benchmark
from moon.files import write_text
from moon.recipe import Recipe, build
from moon.sparse.flops import layer_costs, net_cost

# Speed-up of training with a second thread, by FLOPs per step (2 cores of a Xeon, medians of 5 alternating rounds):
# lenet-norm on 28x28, batch 64: 0.16e9, 1.01; batch 256: 0.64e9, 1.05; batch 1024: 2.6e9, 1.09;
# on 32x32, batch 64: 0.39e9, 1.07; batch 256: 1.6e9, 1.28; resnet18 on 32x32, batch 1: 3.3e9, 1.48.
SMALL_STEP_FLOPS = 1e9
THREADS = "threads"  # the file in a run folder with the number of CPU threads that the run was started with

_log = logging.getLogger(__name__)


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


def cores() -> int:
    """The number of CPU cores that this process may use, which can be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_for(recipe: Recipe, benchmark: Benchmark, folder: Path, most: int) -> int:
    """How many CPU threads should train a run: one for a small network, whose threads would mostly wait for each other.

    The order of sums, and so the last bits of a result, depend on the number of threads. A run that is resumed
    therefore gets as many as before.

    Args:
        recipe: The run.
        benchmark: Its benchmark.
        folder: Its folder; it need not exist yet.
        most: The number of threads for other networks.
    """
    if (before := threads_of(folder)) is not None and before <= cores():
        return before
    if before is None and (folder / "checkpoints").exists():  # started by an earlier version, which did not choose
        return most
    return 1 if 0 < _step_flops(recipe, benchmark) < SMALL_STEP_FLOPS else most


def _step_flops(recipe: Recipe, benchmark: Benchmark) -> float:
    """FLOPs of one training step; a CPU multiplies zeros, too. 0 if they cannot be counted."""
    try:
        model = build.network(recipe, benchmark, "cpu")
        layers = layer_costs(model, (benchmark.channels, benchmark.size, benchmark.size), {})
    except Exception:  # a network of the user that cannot be counted; if it cannot be trained, training says why
        return 0.0
    return net_cost(layers).dense_training() * recipe.batch_size


def threads_of(folder: Path) -> int | None:
    """The number of CPU threads that a run was started with; None if it is not recorded."""
    try:
        return int((folder / THREADS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def record_threads(folder: Path, device: torch.device | str) -> None:
    """Record the current number of CPU threads in a run folder, at the start of training.

    If the run was started with another number, its result will differ in the last bits from that of an uninterrupted
    run: this is logged, and recorded as by `train_run(exact=False)`.
    """
    if torch.device(device).type != "cpu":
        return
    before, now = threads_of(folder), torch.get_num_threads()
    if before is None or not any((folder / "checkpoints").glob("*")):  # otherwise training resumes from a checkpoint
        write_text(folder / THREADS, f"{now}\n")
    elif before != now:
        write_text(folder / "inexact", "")
        _log.warning(
            "%s: the number of CPU threads was %d and is now %d; the result will differ in the last bits from that of "
            "an uninterrupted run",
            folder,
            before,
            now,
        )


@contextmanager
def chosen_threads(recipe: Recipe, benchmark: Benchmark, folder: Path, device: torch.device | str) -> Iterator[None]:
    """Context in which torch uses as many CPU threads as `threads_for` recommends.

    The number is a setting of the host process, so `train_run` does not change it.
    """
    before = torch.get_num_threads()
    if torch.device(device).type == "cpu":
        torch.set_num_threads(threads_for(recipe, benchmark, folder, before))
    try:
        yield
    finally:
        torch.set_num_threads(before)
