"""Time training steps, with all contenders measured in turn in one run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from statistics import median
from typing import Any

import numpy as np
import torch

from moon.data import Benchmark, DataSet
from moon.recipe import build, make_recipe, pick
from moon.timing.limits import seconds
from moon.training import Training

Track = Callable[[list, str], Iterable]
Timed = tuple[str, str, str]  # objective, topology and loop
BASE = "cross-entropy"
LOOPS = ("plain", "captured")
_LEAST_STEPS = 5000  # of the run that the measured steps are taken from


def noise(benchmark: Benchmark, count: int, seed: int = 0) -> DataSet:
    """Random images of the benchmark's shape; times do not depend on the content."""
    channels, height, width = benchmark.input_shape
    images = np.random.default_rng(seed).integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return DataSet(images, np.arange(count, dtype=np.int64) % benchmark.num_known)


def time_steps(
    benchmark: Benchmark,
    contenders: Sequence[tuple[str, str]],
    *,
    device: torch.device,
    steps: int = 100,
    rounds: int = 8,
    track: Track = lambda items, _: items,
    **settings: Any,
) -> list[dict[str, Any]]:
    """Milliseconds per step of each (objective, topology), in the plain loop and, on a GPU, captured.

    A step includes everything: the batch is gathered and augmented, masks change when they are due, and the epoch is
    the last one, where every term of the objective is active. In each round every contender takes `steps` steps in
    turn. A ratio is the median over rounds of the contender's time divided by the first contender's in the same round
    and loop, so that other load on the machine affects both alike; `by_base` is the ratio to cross-entropy on the
    contender's own topology. `track` wraps a list, with a description, for a progress bar.
    """
    timed: dict[Timed, Callable[[], object]] = {}
    obstacles: dict[tuple[str, str], str] = {}
    for objective, topology in contenders:
        for loop in LOOPS if device.type == "cuda" else LOOPS[:1]:
            training = make_training(benchmark, objective, topology, steps, device, **settings)
            training.captured = None if loop == "captured" else False
            training.begin()
            if training.capture_obstacle is not None:
                obstacles[objective, topology] = training.capture_obstacle
                continue
            training.model.train()
            take_steps = timed[objective, topology, loop] = partial(_take_steps, training, count())
            take_steps()  # warm up queues, buffers, graphs and libraries
    times: dict[Timed, list[float]] = {key: [] for key in timed}
    for _ in track(list(range(rounds)), "timing"):
        for key, take_steps in timed.items():
            times[key].append(seconds(take_steps, device) / steps)
    records = []
    for pair in contenders:
        record: dict[str, Any] = {"objective": pair[0], "topology": pair[1]}
        for loop in LOOPS:
            if {(*pair, loop), (*contenders[0], loop)} <= times.keys():
                record[loop] = _measured(times, pair, contenders[0], loop)
        records.append(record | ({"plain_because": obstacles[pair]} if pair in obstacles else {}))
    return records


def _measured(
    times: Mapping[Timed, list[float]], pair: tuple[str, str], first: tuple[str, str], loop: str
) -> dict[str, float]:
    """The median time of a contender in a loop, and its ratios to the first contender and to the base."""
    own = times[*pair, loop]
    low, middle, high = np.quantile(_ratios(own, times[*first, loop]), (0.25, 0.5, 0.75)).tolist()
    measured = {"milliseconds": 1000 * median(own), "ratio": middle, "ratio_low": low, "ratio_high": high}
    if (base := times.get((BASE, pair[1], loop))) is not None:
        measured["by_base"] = median(_ratios(own, base))
    return measured


def _ratios(own: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(own, other, strict=True)]


def make_training(
    benchmark: Benchmark, objective: str, topology: str, steps: int, device: torch.device, **settings: Any
) -> Training:
    """A `Training` on noise with `steps` batches per epoch, and as many epochs as a run that rewires has."""
    needs = "outliers" in pick("objective", objective).takes()
    settings |= {"topology": topology, "outliers": "noise" if needs else "", "epochs": max(100, _LEAST_STEPS // steps)}
    recipe = make_recipe(benchmark, objective, **settings)
    outliers = noise(benchmark, 512, seed=1) if needs else None
    return build.training(recipe, benchmark, noise(benchmark, steps * recipe.batch_size), device, outliers)


def _take_steps(training: Training, epochs: Iterator[int]) -> None:
    """Take the steps of the next epoch."""
    for x, y in training.batches.epoch(next(epochs)):
        training.step(x, y, training.epochs - 1, 1e-3)
