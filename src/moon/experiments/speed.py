"""How long a step and a score take, beside what they are compared with, measured in turns in one run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from moon.data import Benchmark, DataSet
from moon.detect import Detector
from moon.evidence import Evidence
from moon.experiments import build
from moon.experiments.bench import Bench
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
    steps: int = 10,
    rounds: int = 8,
    captured: bool = False,
    track: Track = lambda items, _: items,
    **rest: Any,
) -> list[dict[str, Any]]:
    """Milliseconds a step of each (objective, topology), in its last epoch, where every term is switched on.

    In each round every contender takes so many steps in turn; a ratio is the median over rounds of the contender's time
    by that of the first one in the same round, so that what the machine does besides hits both. With `captured` a step
    is replayed from a CUDA graph: what the device has to do, whatever the host needs to ask for it.
    """
    if captured and device.type != "cuda":
        raise ValueError(f"only a step on a CUDA device can be captured, not on {device}")
    trainings: list[tuple[tuple[str, str], Training]] = []
    for objective, topology in contenders:
        needs = "outliers" in build.pick(build.TABLES["objective"], objective, "objective").takes()
        recipe = build.recipe(row, objective, topology=topology, outliers="noise" if needs else "", **rest)
        data = noise(row, max(recipe.batch_size, 256))
        strange = noise(row, 512, seed=1) if needs else None
        trainings.append(((objective, topology), build.training(recipe, row, data, device, strange)))
    times: dict[tuple[str, str], list[float]] = {name: [] for name, _ in trainings}
    batch = {name: next(iter(training.batches.epoch(0))) for name, training in trainings}

    walks: dict[tuple[str, str], Callable[[], object]] = {}
    for name, training in trainings:
        training.model.train()
        walks[name] = partial(training.step, *batch[name], training.epochs - 1, 1e-3)
        for _ in range(3):  # queues, buffers and libraries warm up
            walks[name]()
        if captured:
            walks[name] = _captured(walks[name])

    def walk(step: Callable[[], object]) -> None:
        for _ in range(steps):
            step()

    for _ in track(list(range(rounds)), "timing"):
        for name, step in walks.items():
            times[name].append(_seconds(partial(walk, step), device) / steps)
    first = times[trainings[0][0]]
    rows = []
    for objective, topology in times:
        own = times[objective, topology]
        low, middle, high = np.quantile([a / b for a, b in zip(own, first, strict=True)], (0.25, 0.5, 0.75)).tolist()
        row_of = {"objective": objective, "topology": topology, "milliseconds": 1000 * median(own)}
        rows.append(row_of | {"ratio": middle, "ratio_low": low, "ratio_high": high})
    return rows


def _captured(step: Callable[[], object]) -> Callable[[], object]:
    """The step as a CUDA graph."""
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # what is allocated at first use must not be part of the graph
        step()
    torch.cuda.current_stream().wait_stream(side)
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def time_scores(
    row: Benchmark,
    names: Iterable[str],
    *,
    device: torch.device,
    net: str | None = None,
    bank: int = 5000,
    queries: int = 5000,
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Seconds to score so many queries with each detector alone, and with all that share the reading of the images.

    Alone is what one user would wait for: reading the queries, reading what the detector is fitted on, fitting and
    scoring. Together each set is read once.
    """
    model = build.network(build.recipe(row, "moon", net=net), row, device).eval()
    data = {
        "queries": noise(row, queries),
        "train": noise(row, bank, 1),
        "validation": noise(row, max(bank // 10, 20), 2),
    }
    bench = Bench(row, {}, {}, ())
    bench.read(model, data["validation"])  # libraries warm up
    evidence: dict[str, Evidence] = {}
    reading: dict[str, float] = {}

    def read(key: str) -> None:
        seen = bench.read(model, data[key])
        # An untrained model is right about nothing; OpenMax wants it to be.
        own = torch.zeros_like(seen.logits).scatter_(1, torch.as_tensor(data[key].labels, device=device)[:, None], 1.0)
        evidence[key] = replace(seen, logits=seen.logits + 10 * own)

    for key in track(list(data), "reading"):
        reading[key] = _seconds(lambda key=key: read(key), device)
    own: dict[str, float] = {}
    alone: dict[str, float] = {}
    left_out: dict[str, str] = {}
    for name in track(list(names), "scoring"):
        detector = build.detector(name, row)
        if detector.perturbs:
            continue
        needs = [] if detector.fits_on == "nothing" else [detector.fits_on]

        def act(detector: Detector = detector, needs: list[str] = needs) -> None:
            for key in needs:
                detector.fit(evidence[key])
            detector.score(evidence["queries"])

        try:
            act()  # libraries warm up
        except ValueError as error:
            left_out[name] = str(error)
            continue
        own[name] = _seconds(act, device)
        alone[name] = own[name] + reading["queries"] + sum(reading[key] for key in needs)
    together = sum(reading.values()) + sum(own.values())
    slowest = max(alone, key=lambda name: alone[name])
    return {
        "queries": queries,
        "bank": bank,
        "left_out": left_out,
        "reading": reading,
        "own": own,
        "alone": alone,
        "together": together,
        "slowest": slowest,
        "ratio": together / alone[slowest],
    }
