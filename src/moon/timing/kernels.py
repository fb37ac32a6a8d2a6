"""What the GPU does in a captured training step: the time of each kernel, by what it is for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch

from moon.data import Benchmark
from moon.timing.steps import make_training
from moon.training.captured import CapturedSteps, capture_obstacle

OTHER = "other"

# In a CUDA graph a kernel is known by its name alone: our own, and words in the names of others, the first group first.
_OURS = {
    "BatchNorm": ("moments", "normalise", "norm_grad_sums", "norm_grad_input"),
    "loss": ("unknown_aware", "observation", "moving_average", "scheduled_weight"),
    "update": ("sgd",),
    "mask update": ("select_digit", "count_ties", "write_masks"),
}
_GROUPS = {
    "forward convolution": ("fprop", "implicit_convolve", "conv2d_forward"),
    "input gradient": ("dgrad", "conv2d_backward_input"),
    "weight gradient": ("wgrad", "conv2d_backward_weight"),
    "BatchNorm": ("batch_norm", "batchnorm", "bn_fw", "bn_bw"),
    "loss": ("softmax", "nll_loss", "argmax"),
    "copies": (
        "memcpy", "memset", "copy_kernel", "fillfunctor", "catarray", "nchwtonhwc", "nhwctonchw", "converttensor",
        "constant_pad",
    ),
    "matrix product": ("gemm", "nvjet", "cublas", "cutlass", "splitkreduce"),
}  # fmt: skip
GROUPS = (*_GROUPS, "update", "mask update", OTHER)


class Event(NamedTuple):
    """One execution of a kernel, in microseconds from any fixed time."""

    name: str
    start: float
    end: float


def group_of(name: str) -> str:
    """Which of `GROUPS` a kernel belongs to, by its name in a profile."""
    for group, names in _OURS.items():
        if name in names:
            return group
    lower = name.lower()
    return next((group for group, words in _GROUPS.items() if any(word in lower for word in words)), OTHER)


def summarise(events: Iterable[Event], steps: int) -> dict[str, Any]:
    """Microseconds per step, and a list of `kernels` and one of `groups`, the longest first.

    Kernels on two streams overlap. `busy` is the time in which at least one runs, so the sum of all times may exceed
    it. `idle_within` is the time without a kernel between the first and the last of a step, `idle_between` the time
    from the last kernel of a step to the first of the next one. If the numbers of kernels differ between steps, the two
    cannot be told apart, and `idle_between` is None and part of `idle_within`.
    """
    ordered = sorted(events, key=lambda event: event.start)
    if not ordered:
        raise ValueError("the profile contains no kernels; CUPTI may be missing or used by another profiler")
    sequences = _divided(ordered, steps)
    span = sum(max(e.end for e in s) - s[0].start for s in sequences)
    busy = sum(_busy(s) for s in sequences)
    between = sum(max(0.0, b[0].start - max(e.end for e in a)) for a, b in pairwise(sequences)) / max(1, steps - 1)
    total = sum(event.end - event.start for event in ordered)
    kernels = _by_kernel(ordered, steps, total)
    return {
        "steps": steps,
        "span": span / steps,
        "busy": busy / steps,
        "sum": total / steps,
        "idle_within": (span - busy) / steps,
        "idle_between": between if len(sequences) == steps > 1 else None,
        "groups": _by_group(kernels),
        "kernels": kernels,
    }


def _divided(ordered: list[Event], steps: int) -> list[list[Event]]:
    """The events of each step; all together if the steps differ in their kernels."""
    length, rest = divmod(len(ordered), steps)
    if rest:
        return [ordered]
    sequences = [ordered[i : i + length] for i in range(0, len(ordered), length)]
    return sequences if len({tuple(sorted(e.name for e in s)) for s in sequences}) == 1 else [ordered]


def _by_kernel(events: list[Event], steps: int, total: float) -> list[dict[str, Any]]:
    """Count, time and share of each kernel, the longest first."""
    times, counts = defaultdict[str, float](float), Counter[str]()
    for event in events:
        times[event.name] += event.end - event.start
        counts[event.name] += 1
    return [
        {
            "group": group_of(name),
            "name": name,
            "count": counts[name] / steps,
            "microseconds": times[name] / steps,
            "share": times[name] / total,
        }
        for name in sorted(times, key=lambda name: -times[name])
    ]


def _by_group(kernels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The sums over the kernels of each group, the longest first."""
    groups = []
    for group in GROUPS:
        if own := [kernel for kernel in kernels if kernel["group"] == group]:
            sums = {key: sum(kernel[key] for kernel in own) for key in ("count", "microseconds", "share")}
            groups.append({"group": group} | sums)
    return sorted(groups, key=lambda group: -group["microseconds"])


def _busy(events: Sequence[Event]) -> float:
    """The length of the union of the intervals, which are sorted by start."""
    busy, until = 0.0, float("-inf")
    for event in events:
        busy += max(0.0, event.end - max(event.start, until))
        until = max(until, event.end)
    return busy


def profile_steps(
    benchmark: Benchmark, objective: str, topology: str, *, device: torch.device, steps: int = 20, **settings: Any
) -> dict[str, Any]:
    """Summarise captured training steps: forward and backward pass and update, without batches and mask changes.

    Takes other settings of `make_recipe`, too. A ValueError if the steps cannot be captured.
    """
    training = make_training(benchmark, objective, topology, steps, device, **settings)
    if (obstacle := capture_obstacle(training.setup)) is not None:
        raise ValueError(f"the steps cannot be captured: {obstacle}")
    captured = CapturedSteps(training.setup)
    training.model.train()
    x, y = next(iter(training.batches.epoch(0)))
    replay = captured.replayed(x, y, training.epochs - 1, 1e-3)
    for _ in range(5):
        replay()
    torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(steps):
            replay()
        torch.cuda.synchronize(device)
    found = [event for event in profile.events() or () if event.device_type.name == "CUDA"]
    return summarise([Event(e.name, e.time_range.start, e.time_range.end) for e in found], steps)
