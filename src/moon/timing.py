"""How long a step and a score take, beside what they are compared with, measured in turns in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from moon.data import Benchmark, DataSet
from moon.detect import Detector
from moon.evidence import Evidence, classifier_name
from moon.evidence import read as plain_read
from moon.recipe import build
from moon.recipe.recipe import Recipe
from moon.run.images import Bench
from moon.sparse.flops import layer_costs, net_cost
from moon.training import Training

Track = Callable[[list, str], Iterable]
BASE = "cross-entropy"


def _seconds(act: Callable[[], object], device: torch.device) -> float:
    """How long it takes, until the device is done."""
    _wait(device)
    started = time.perf_counter()
    act()
    _wait(device)
    return time.perf_counter() - started


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def noise(row: Benchmark, count: int, seed: int = 0) -> DataSet:
    """Images of the benchmark's shape: how long it takes does not depend on what is on them."""
    shape = count, row.size, row.size, row.channels
    images = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    return DataSet(images, np.arange(count, dtype=np.int64) % row.num_known)


def time_steps(
    row: Benchmark,
    contenders: Sequence[tuple[str, str]],
    *,
    device: torch.device,
    steps: int = 100,
    rounds: int = 8,
    track: Track = lambda items, _: items,
    **rest: Any,
) -> list[dict[str, Any]]:
    """Milliseconds a step of each (objective, topology), in the plain loop and, on a GPU, captured.

    A step is all of it: the batch is gathered and augmented, masks change when they are due, and the epoch is the
    objective's last, where every term is switched on. In each round every contender takes so many steps in turn; a
    ratio is the median over rounds of the contender's time by that of the first one in the same round and loop, so that
    what the machine does besides hits both; `by_base` is the same by cross-entropy on the contender's own topology.
    """
    walks: dict[tuple[str, str, str], Callable[[], object]] = {}
    why: dict[tuple[str, str], str] = {}
    for objective, topology in contenders:
        for loop in ("plain", "captured") if device.type == "cuda" else ("plain",):
            training = _training(row, objective, topology, steps, device, **rest)
            training.captured = None if loop == "captured" else False
            training.begin(lambda _: None)
            if training.plain_because is not None:
                why[objective, topology] = training.plain_because
                continue
            training.model.train()
            walk = walks[objective, topology, loop] = partial(_walk, training, count())
            walk()  # queues, buffers, graphs and libraries warm up
    times: dict[tuple[str, str, str], list[float]] = {name: [] for name in walks}
    for _ in track(list(range(rounds)), "timing"):
        for name, walk in walks.items():
            times[name].append(_seconds(walk, device) / steps)
    rows = []
    for pair in contenders:
        found: dict[str, Any] = {"objective": pair[0], "topology": pair[1]}
        for loop in ("plain", "captured"):
            own, first = times.get((*pair, loop)), times.get((*contenders[0], loop))
            if own is not None and first is not None:
                low, middle, high = np.quantile(_ratios(own, first), (0.25, 0.5, 0.75)).tolist()
                measured = {"milliseconds": 1000 * median(own), "ratio": middle, "ratio_low": low, "ratio_high": high}
                if (base := times.get((BASE, pair[1], loop))) is not None:
                    measured["by_base"] = median(_ratios(own, base))
                found[loop] = measured
        rows.append(found | ({"plain_because": why[pair]} if pair in why else {}))
    return rows


def _ratios(own: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(own, other, strict=True)]


def _training(row: Benchmark, objective: str, topology: str, steps: int, device: torch.device, **rest: Any) -> Training:
    """One on noise, of so many batches an epoch."""
    needs = "outliers" in build.pick(build.TABLES["objective"], objective, "objective").takes()
    recipe = build.recipe(row, objective, topology=topology, outliers="noise" if needs else "", **rest)
    strange = noise(row, 512, seed=1) if needs else None
    return build.training(recipe, row, noise(row, steps * recipe.batch_size), device, strange)


def _walk(training: Training, epochs: Iterator[int]) -> None:
    """The next epoch's steps."""
    for x, y in training.batches.epoch(next(epochs)):
        training.take(x, y, training.epochs - 1, 1e-3)


# Passes of a training step over the output of a convolution: it is written; BatchNorm reads it for its statistics and
# again to write what the next layer reads; back, BatchNorm's sums and its result read it and the slope, and the result
# is written; the convolution reads that twice and its input once, and writes the input's slope.
PASSES = 14


def limits(row: Benchmark, *, device: torch.device, net: str | None, batch_size: int, precision: str) -> dict[str, Any]:
    """What a step cannot be faster than on this machine: the products of a dense network at the rate of a large matrix
    product, and after them the traffic of its activations (`PASSES`) at the rate of a large copy, both measured now."""
    recipe = build.recipe(row, "cross-entropy", net=net, topology="dense")
    model = build.network(recipe, row, "cpu")
    shape = row.channels, row.size, row.size
    flops = batch_size * net_cost(layer_costs(model, shape, {})).dense_training()
    dtype = getattr(torch, precision)
    rate, bandwidth = _rates(device, dtype)
    traffic = PASSES * batch_size * _activations(model, shape) * dtype.itemsize
    return {
        "flops": flops,
        "traffic_bytes": traffic,
        "matrix_flops_per_second": rate,
        "bytes_per_second": bandwidth,
        "matrix_milliseconds": 1000 * flops / rate,
        "milliseconds": 1000 * (flops / rate + traffic / bandwidth),
    }


def _rates(device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """FLOPs a second of a large matrix product, and bytes a second of a large copy."""
    side = 8192 if device.type == "cuda" else 1024
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    large = torch.zeros(2**28 if device.type == "cuda" else 2**24, device=device)
    other = torch.empty_like(large)

    def best(act: Callable[[], object]) -> float:
        return min(_seconds(act, device) for _ in range(6))

    as_usual = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32  # what convolutions may do
    rate = 2 * side**3 / best(lambda: torch.mm(a, b))
    torch.backends.cuda.matmul.allow_tf32 = as_usual
    return rate, 2 * large.numel() * large.element_size() / best(lambda: other.copy_(large))


def _activations(model: nn.Module, shape: tuple[int, ...]) -> int:
    """Values that the convolutions of a network put out for one image."""
    counts: list[int] = []
    skeleton = deepcopy(model).to("meta").eval()
    for module in skeleton.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, out: counts.append(out.numel()))
    skeleton(torch.empty(1, *shape, device="meta"))
    return sum(counts)


def time_scores(
    row: Benchmark,
    names: Iterable[str],
    *,
    device: torch.device,
    net: str | None = None,
    bank: int = 5000,
    queries: int = 5000,
    from_evidence: bool = False,
    sparsity: float = Recipe.sparsity,
    precision: str = "float32",
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Seconds to score so many queries with each detector alone, and with all that share the reading of the images.

    Alone is what one user would wait for: reading the queries, reading what the detector is fitted on, fitting and
    scoring. Together each set is read once. With `from_evidence` nothing is read, as where evidence was kept: features
    are made up. Masks are RigL's first ones. On a CPU the dense products of the same network are timed beside, on the
    validation images alone, because they take long.
    """
    recipe = build.recipe(row, "moon", net=net, sparsity=sparsity)
    model = build.network(recipe, row, device).eval()
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters()), steps=1000)
    data = {
        "queries": noise(row, queries),
        "train": noise(row, bank, 1),
        "validation": noise(row, max(bank // 50, 20), 2),  # as many as CIFAR-10 has here
    }
    bench = Bench(row, {}, {}, ())
    head = model.get_submodule(classifier_name(model))
    assert isinstance(head, nn.Linear)

    def made_up(labels: np.ndarray) -> Evidence:
        y = torch.as_tensor(labels, device=device)
        chance = torch.Generator(device).manual_seed(len(y))
        features = torch.rand(len(y), head.in_features, generator=chance, device=device)
        return Evidence(head(features).detach().double(), features, row.num_known, y, (head.weight, head.bias))

    look = (
        (lambda part: made_up(part.labels))
        if from_evidence
        else (lambda part: bench.read(model, part, precision=precision))
    )
    look(data["validation"])  # libraries warm up
    evidence: dict[str, Evidence] = {}
    reading: dict[str, float] = {}

    def read(key: str) -> None:
        seen = look(data[key])
        # An untrained model is right about nothing; OpenMax wants it to be.
        own = torch.zeros_like(seen.logits).scatter_(1, torch.as_tensor(data[key].labels, device=device)[:, None], 1.0)
        evidence[key] = replace(seen, logits=seen.logits + 10 * own)

    for key in track(list(data), "reading"):
        reading[key] = _seconds(lambda key=key: read(key), device)
    own: dict[str, float] = {}
    alone: dict[str, float] = {}
    left_out: dict[str, str] = {}
    scores: dict[str, Tensor] = {}
    for name in track(list(names), "scoring"):
        detector = build.detector(name, row)
        if detector.perturbs:
            continue
        needs = detector.fits_on_splits

        def act(given: dict[str, Tensor], detector: Detector = detector, needs: tuple[str, ...] = needs) -> Tensor:
            if needs:
                detector.fit(*(evidence[key] for key in needs))
            return detector.score_given(evidence["queries"], given)

        try:
            scores[name] = act(scores)  # libraries warm up
        except ValueError as error:
            left_out[name] = str(error)
            continue
        own[name] = _seconds(lambda act=act: act(scores), device)
        by_itself = _seconds(lambda act=act: act({}), device) if detector.parts else own[name]
        alone[name] = by_itself + reading["queries"] + sum(reading[key] for key in needs)
    together = sum(reading.values()) + sum(own.values())
    slowest = max(alone, key=lambda name: alone[name])
    images = sum(len(part.labels) for part in data.values())
    dense = None
    if device.type == "cpu" and not from_evidence:
        some = bench.batches(data["validation"], device)
        dense = _seconds(lambda: plain_read(model, some), device) * images / len(data["validation"].labels)
    densities = {name: float(mask.float().mean()) for name, mask in topology.masks.items()}
    cost = net_cost(layer_costs(model, (row.channels, row.size, row.size), densities))
    rate = _rates(device, torch.float32)[0]
    return {
        "read": not from_evidence,
        "sparsity": sparsity,
        "precision": precision,
        "dense_reading": dense,  # all images at the pace of the validation images
        "limit": images * cost.dense / rate,  # seconds of the reading's products
        "limit_sparse": images * cost.sparse / rate,  # of those that exist
        "queries": queries,
        "bank": bank,
        "left_out": left_out,
        "reading": reading,
        "own": own,
        "alone": alone,
        "together": together,
        "from_evidence": sum(own.values()),
        "slowest": slowest,
        "ratio": together / alone[slowest],
    }
