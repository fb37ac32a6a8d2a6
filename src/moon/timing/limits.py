"""Lower bounds for the time of a training step or a forward pass, from the measured speed of this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from moon.data import Benchmark
from moon.recipe import build, make_recipe
from moon.sparse.flops import NetCost, layer_costs, net_cost
from moon.suggest import first_line

_log = logging.getLogger(__name__)

# How often a training step reads or writes a tensor of the size of a convolution's output. Forward, 5: the convolution
# writes it; BatchNorm reads it for its statistics, reads it again and writes its output, which the next layer reads.
# Backward, 9: BatchNorm reads it and the gradient twice, once for its sums and once for its result, and writes the
# result; the convolution reads that twice and its input once, and writes the gradient of its input.
PASSES = 14


def seconds(act: Callable[[], object], device: torch.device) -> float:
    """Time a call, including the work of the device."""
    _wait(device)
    started = time.perf_counter()
    act()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def step_limits(
    benchmark: Benchmark, *, device: torch.device, net: str | None, batch_size: int, precision: str
) -> dict[str, Any] | None:
    """A lower bound on the time of a training step on this machine; None if its FLOPs cannot be counted.

    It is the FLOPs of a dense network at the measured rate of a large matrix product, plus the memory traffic of its
    activations (`PASSES`) at the measured rate of a large copy.
    """
    recipe = make_recipe(benchmark, "cross-entropy", net=net, topology="dense")
    model = build.network(recipe, benchmark, "cpu")
    shape = benchmark.input_shape
    if (cost := cost_or_none(model, shape, {})) is None:
        return None
    flops = batch_size * cost.dense_training()
    dtype = getattr(torch, precision)
    rate, bandwidth = machine_rates(device, dtype)
    traffic = PASSES * batch_size * _activations(model, shape) * dtype.itemsize
    return {
        "flops": flops,
        "traffic_bytes": traffic,
        "matrix_flops_per_second": rate,
        "bytes_per_second": bandwidth,
        "matrix_milliseconds": 1000 * flops / rate,
        "milliseconds": 1000 * (flops / rate + traffic / bandwidth),
    }


def cost_or_none(model: nn.Module, shape: tuple[int, ...], densities: Mapping[str, float]) -> NetCost | None:
    """The FLOPs of a network; None, with a warning, if they cannot be counted."""
    try:
        return net_cost(layer_costs(model, shape, densities))
    except Exception as error:  # the network's own code may raise anything
        _log.warning("there is no limit, because the FLOPs are not counted: %s", first_line(error))
        return None


def machine_rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOPs per second of a large matrix product, and bytes per second of a large copy."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    large = torch.zeros(2**28 if device.type == "cuda" else 2**24, device=device)
    other = torch.empty_like(large)

    def best(act: Callable[[], object]) -> float:
        return min(seconds(act, device) for _ in range(6))

    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32  # as convolutions are computed
    try:
        rate = 2 * side**3 / best(lambda: torch.mm(a, b))
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return rate, 2 * large.numel() * large.element_size() / best(lambda: other.copy_(large))


def _activations(model: nn.Module, shape: tuple[int, ...]) -> int:
    """The number of values that the convolutions of a network produce for one image."""
    counts: list[int] = []
    skeleton = deepcopy(model).eval()
    for module in skeleton.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, out: counts.append(out.numel()))
    with torch.no_grad():
        skeleton(torch.zeros(1, *shape))
    return sum(counts)
