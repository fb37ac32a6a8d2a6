"""Time the inference of sparse networks on a CPU, compared with programs that compute dense networks."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.optim.swa_utils import update_bn

from moon.data import BENCHMARKS, Benchmark
from moon.evidence import Evidence
from moon.export.file import write_network
from moon.export.graph import Graph
from moon.export.program import trace_detector
from moon.export.runtime import runtime
from moon.export.tracing import trace
from moon.recipe import build, make_recipe, pick
from moon.run.machine import cores
from moon.sparse.flops import layer_costs, net_cost
from moon.timing.contenders import ONNX_RUNTIME, TORCH, Contender, make_contenders
from moon.timing.fresh import time_first_answer
from moon.timing.steps import Track

_OWN_NETS = {"mobilenet_v2": "moon.timing.mobilenet:mobilenet_v2"}
_IMAGENET = ("mobilenet_v2", "resnet18-imagenet")  # networks for its images, besides that of the benchmark
_TURN_SECONDS = 0.05  # short calls are repeated, so that a turn takes about as long
_PAUSE_SECONDS = 0.01  # before a turn: threads of the contender before it may still be waiting for work, which is busy


def benchmark_for(net: str) -> Benchmark:
    """The benchmark whose images a network is made for; CIFAR-10 if nothing is known about the network."""
    pick("net", _OWN_NETS.get(net, net))
    name = "resnet50" if net in _IMAGENET else net
    return next((found for found in BENCHMARKS.values() if found.net == name), BENCHMARKS["cifar10"])


def time_predictions(
    net: str,
    benchmark: Benchmark,
    sparsity: float,
    *,
    batches: Sequence[int] = (1, 32),
    threads: Sequence[int] = (1,),
    precisions: Sequence[str] = ("float32",),
    rounds: int = 10,
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Time a sparse network with moon-runtime and with all other programs that are installed.

    Masks are ERK's and weights random; times do not depend on them. In each round every program computes the same
    batch in turn, with each number of threads. A ratio is the median over rounds of two times in the same round, so
    that other load on the machine affects both alike. `track` wraps a list, with a description, for a progress bar.

    Returns a record of sizes, the first answer of a new process, and `times`: one record for each batch size, number of
    threads and program. `speedup` is relative to `base`, `over_one_thread` to the same program with one thread.
    `cpu_speedup` compares the times that one thread spent on the CPU, which other processes affect less.
    """
    if max(threads) > cores():
        raise ValueError(f"{max(threads)} threads are more than the {cores()} cores that this process may use")
    runtime()  # says so if it is missing, before anything is computed
    shape = benchmark.input_shape
    model, limit = _sparse_network(net, benchmark, sparsity)
    with TemporaryDirectory() as folder:
        sizes = _write(Path(folder), trace(model, shape), model, benchmark)
        first_answer = time_first_answer(Path(folder, "float16.moon"))
        instructions: str = runtime().Network(Path(folder, "float32.moon")).instructions
        times, missing = [], {}
        base = TORCH
        for batch in batches:
            contenders, missing = make_contenders(model, Path(folder, "float32.moon"), batch, threads, precisions)
            base = TORCH if ONNX_RUNTIME in missing else ONNX_RUNTIME
            images = np.random.default_rng(batch).standard_normal((batch, *shape), dtype=np.float32)
            heading = f"{net}, {sparsity:.0%}, batch {batch}"
            times += [{"batch": batch, **row} for row in _compare(contenders, images, base, rounds, track, heading)]
    return {
        "net": net,
        "input": list(shape),
        "classes": benchmark.num_known,
        "sparsity": sparsity,
        "limit": limit,
        "instructions": instructions,
        "bytes": sizes,
        "first_answer": first_answer,
        "rounds": rounds,
        "base": base,
        "not_compared": missing,
        "times": times,
    }


def machine() -> dict[str, Any]:
    """The CPU, its cores, and how busy it was in the last minute."""
    name = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or ARM
        pass
    return {"hardware": f"{name or platform.machine()}, {cores()} cores", "load": round(os.getloadavg()[0], 2)}


def _sparse_network(net: str, benchmark: Benchmark, sparsity: float) -> tuple[nn.Module, float]:
    """A network with ERK masks, and how many times fewer FLOPs than a dense one it has."""
    recipe = make_recipe(benchmark, "cross-entropy", net=_OWN_NETS.get(net, net), topology="static", sparsity=sparsity)
    model = build.network(recipe, benchmark, "cpu")
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters()), steps=1000)
    shape = benchmark.input_shape
    noise = torch.randn(8, *shape, generator=torch.Generator().manual_seed(0))
    update_bn([noise], model)  # so that values have the scale that they have in a trained network
    densities = {name: float(mask.float().mean()) for name, mask in topology.masks.items()}
    cost = net_cost(layer_costs(model, shape, densities))
    return model.eval(), cost.dense / cost.sparse


def _write(folder: Path, graph: Graph, model: nn.Module, benchmark: Benchmark) -> dict[str, int]:
    """Write files that answer, in float32 and float16, and return their sizes beside that of the dense weights."""
    classes = benchmark.num_known
    width = graph.weights[next(op["weight"] for op in graph.ops if op["out"] == graph.logits)].shape[1]
    program = trace_detector(
        pick("detector", "msp")(),
        Evidence(torch.zeros(1, classes, dtype=torch.float64), torch.zeros(1, width), classes),
    )
    description = {
        "preprocess": {"mean": list(benchmark.mean), "std": list(benchmark.std), "resize": "cover"},
        "classes": [str(label) for label in range(classes)],
        "temperature": 1.0,
        "detector": {"name": "msp", "options": {}, "program": program.ops, "output": program.output},
        "threshold": {"accept": 0.95, "confidence": None, "per_class": False},
    }
    constants = {name: tensor.numpy() for name, tensor in program.tensors.items()}
    tensors = constants | {"threshold": np.zeros(1), "calibration": np.zeros(1)}
    sizes = {"dense": sum(4 * parameter.numel() for parameter in model.parameters())}
    for precision in ("float32", "float16"):
        sizes[precision] = write_network(folder / f"{precision}.moon", graph, description, precision, tensors)
    return sizes


def _compare(
    contenders: Mapping[tuple[str, int], Contender],
    images: NDArray[np.float32],
    base: str,
    rounds: int,
    track: Track,
    heading: str,
) -> list[dict[str, Any]]:
    """A record for each contender."""
    before = torch.get_num_threads()
    try:
        expected = next(compute for (name, _), compute in contenders.items() if name == TORCH)(images)
        differences = {key: float(np.abs(compute(images) - expected).max()) for key, compute in contenders.items()}
        times = time_in_turn(contenders, images, rounds, track, heading)
    finally:
        torch.set_num_threads(before)
    records = []
    for (name, count), own in times.items():
        wall, cpu = (_quartiles(times[base, count][:, clock] / own[:, clock]) for clock in (0, 1))
        record = {
            "threads": count,
            "contender": name,
            "milliseconds": 1000 * float(np.median(own[:, 0])),
            "speedup": wall[1],
            "speedup_low": wall[0],
            "speedup_high": wall[2],
            "difference": differences[name, count],  # of logits, from PyTorch's
            "largest_logit": float(np.abs(expected).max()),
        }
        if count == 1:
            record |= {"cpu_milliseconds": 1000 * float(np.median(own[:, 1])), "cpu_speedup": cpu[1]}
        elif (name, 1) in times:
            record["over_one_thread"] = _quartiles(times[name, 1][:, 0] / own[:, 0])[1]
        records.append(record)
    return records


def _quartiles(values: NDArray[np.float64]) -> list[float]:
    return np.quantile(values, (0.25, 0.5, 0.75)).tolist()


def time_in_turn(
    contenders: Mapping[tuple[str, int], Contender],
    images: NDArray[np.float32],
    rounds: int,
    track: Track = lambda items, _: items,
    heading: str = "timing",
) -> dict[tuple[str, int], NDArray[np.float64]]:
    """Seconds per call of each contender in each round: elapsed, and those that the calling thread spent on the CPU.

    A call that is much shorter than a turn is repeated. The first of several calls does not count, because it finds
    the data of another contender in the cache; a single one is so long that this does not matter.
    """

    def seconds(compute: Contender, calls: int) -> tuple[float, float]:
        started, started_cpu = time.perf_counter(), time.thread_time()
        for _ in range(calls):
            compute(images)
        return (time.perf_counter() - started) / calls, (time.thread_time() - started_cpu) / calls

    calls = {}
    for key, compute in contenders.items():
        compute(images)  # warm up
        calls[key] = max(1, min(50, round(_TURN_SECONDS / seconds(compute, 1)[0])))
    pause = _PAUSE_SECONDS if max(threads for _, threads in contenders) > 1 else 0
    times: dict[tuple[str, int], list[tuple[float, float]]] = {key: [] for key in contenders}
    for _ in track(list(range(rounds)), heading):
        for key, compute in contenders.items():
            time.sleep(pause)
            if calls[key] > 1:
                compute(images)
            times[key].append(seconds(compute, calls[key]))
    return {key: np.array(values) for key, values in times.items()}
