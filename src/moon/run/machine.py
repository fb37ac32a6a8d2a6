"""The software and hardware of a run, and what its last bits depend on: CPU threads, processes, cuDNN."""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from moon import __version__
from moon.data import Benchmark
from moon.recipe import Recipe, build
from moon.sparse.flops import layer_costs, net_cost
from moon.suggest import first_line

# Speed-up of training with a second thread, by FLOPs per step (2 cores of a Xeon, medians of 5 alternating rounds):
# lenet-norm on 28x28, batch 64: 0.16e9, 1.01; batch 256: 0.64e9, 1.05; batch 1024: 2.6e9, 1.09;
# on 32x32, batch 64: 0.39e9, 1.07; batch 256: 1.6e9, 1.28; resnet18 on 32x32, batch 1: 3.3e9, 1.48.
SMALL_STEP_FLOPS = 1e9

_log = logging.getLogger(__name__)


def software() -> dict[str, str]:
    """The versions of moon, torch and Python."""
    return {"moon": __version__, "torch": torch.__version__, "python": platform.python_version()}


def usable_device(name: torch.device | str) -> torch.device:
    """Return the device of this name; raise a ValueError if there is none, or a test allocation on it fails."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device '{name}'; choose cpu, cuda, or cuda:N for one of several GPUs") from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, AttributeError, ImportError) as error:  # depending on how PyTorch was built
        reason = first_line(error)
        if device.type == "cuda" and not torch.cuda.is_available():
            is_built = torch.backends.cuda.is_built()
            reason = "PyTorch finds no GPU" if is_built else f"PyTorch {torch.__version__} was built without CUDA"
        raise ValueError(f"device '{name}' cannot be used ({reason}); choose another one, such as cpu") from None
    return device


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


def threads_for(recipe: Recipe, benchmark: Benchmark, most: int) -> int:
    """How many CPU threads should train a run: one for a small network, whose threads would mostly wait for each other.

    A network whose FLOPs cannot be counted gets one, too, and the log says so. Other networks get `most`. This is for a
    run that starts; one that is resumed gets as many as before, see `restore_conditions`.
    """
    try:
        return 1 if _step_flops(recipe, benchmark) < SMALL_STEP_FLOPS else most
    except Exception as error:  # the network's own code may raise anything; if it cannot be trained, training says why
        _log.info("%s is trained with one CPU thread, because its FLOPs are not counted (%s); OMP_NUM_THREADS sets "
                  "another number", recipe.net, first_line(error))  # fmt: skip
        return 1


def _step_flops(recipe: Recipe, benchmark: Benchmark) -> float:
    """FLOPs of one training step; a CPU multiplies zeros, too."""
    layers = layer_costs(build.network(recipe, benchmark, "cpu"), benchmark.input_shape, {})
    return net_cost(layers).dense_training() * recipe.batch_size


def conditions(device: torch.device | str, ranks: int) -> dict[str, Any]:
    """What the last bits of a result depend on besides recipe and data: the order of sums. Checkpoints record it."""
    device = torch.device(device)
    kind = f"{device.type}, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"
    return {
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "ranks": ranks,
        "hardware": torch.cuda.get_device_name(device) if device.type == "cuda" else kind,
        "torch": torch.__version__,
    }


def restore_conditions(
    folder: Path, before: Mapping[str, Any], device: torch.device | str, ranks: int, exact: bool
) -> list[str]:
    """Prepare to resume a run as it was started: with the CPU threads and processes of its last checkpoint (`before`).

    Returns why the result will differ in its last bits from that of an uninterrupted run. If it must not (`exact`), the
    number of threads is set, and a ValueError says why that is impossible.
    """
    if exact and (threads := before["threads"]) is not None and torch.device(device).type == "cpu":
        if threads != torch.get_num_threads():
            _log.info("%s: resumed with %d CPU thread(s), as it was started", folder, threads)
            torch.set_num_threads(threads)
        if threads > cores():
            _log.warning("%s: was started with %d CPU threads, and this machine has %d cores; --inexact uses fewer",
                         folder, threads, cores())  # fmt: skip
    now = conditions(device, ranks)
    differ = {name: f"{name} was {before[name]}, now {now[name]}" for name in now if now[name] != before[name]}
    is_same_device = None not in (now["threads"], before["threads"])
    if exact and (change := differ.get("ranks") or (is_same_device and differ.get("threads"))):
        raise ValueError(
            f"{folder}: cannot be resumed exactly ({change}); start it as before, or accept a result that differs in "
            "its last bits (exact=False, --inexact)"
        )
    if differ:
        _log.warning("%s: the result will differ in its last bits from that of an uninterrupted run (%s)",
                     folder, "; ".join(differ.values()))  # fmt: skip
    return [f"resumed: {change}" for change in differ.values()]


@contextmanager
def threads_kept() -> Iterator[None]:
    """Context that restores the number of CPU threads, a setting of the host process, at its end."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


@contextmanager
def chosen_threads(recipe: Recipe, benchmark: Benchmark, device: torch.device | str) -> Iterator[None]:
    """Context in which torch uses as many CPU threads as `threads_for` recommends."""
    with threads_kept():
        if torch.device(device).type == "cpu":
            torch.set_num_threads(threads_for(recipe, benchmark, torch.get_num_threads()))
        yield
