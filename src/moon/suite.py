"""The suite of small data: train, pack and measure what packed files accept, as `docs/results/small.md` has it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from moon.data.small import SUITE
from moon.deploy import pack_run
from moon.files import write_json
from moon.recipe import make_recipe
from moon.records import read_json
from moon.run.images import BenchmarkImages
from moon.run.train import train_run

# Trainings by name, and the detectors that their networks are packed with.
TRAININGS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "small": ({"preset": "small"}, ("layers", "knn", "fisher")),
    "moon": ({"objective": "moon"}, ("fisher", "knn", "layers")),
    "plain": ({"preset": "plain"}, ("fisher",)),
}


def benchmarks_of(half: str) -> list[str]:
    """The benchmarks of a half of the suite, or of both with "all"."""
    return [f"small-{name}" for name, small in SUITE.items() if half in (small.half, "all")]


def measure_one(training: str, benchmark: str, seed: int, folder: Path) -> dict[str, Any]:
    """Train a network, unless it is trained, pack it with each detector, and return what the files accept."""
    logging.getLogger("moon").setLevel(logging.ERROR)  # many runs at the same time
    settings, detectors = TRAININGS[training]
    images = BenchmarkImages.open("data", benchmark)
    run = folder / f"{benchmark}-{training}-s{seed}"
    started = time.process_time()
    train_run(make_recipe(benchmark, seed=seed, **settings), run, images)
    seconds, path = time.process_time() - started, run / "seconds.json"
    if not path.exists():
        write_json(path, {"cpu": seconds})
    found, accuracy = {}, 0.0
    for detector in detectors:
        facts = pack_run(run, images, run / f"{detector}.moon", detector, force=True)
        accepted = {name: 1 - row["rejected"] for name, row in facts["measured"].items() if name != "known"}
        known = facts["measured"]["known"]
        found[detector], accuracy = {"known": known["accepted"], **accepted}, known["accuracy"]
    return {
        "training": training, "benchmark": benchmark, "seed": seed, "accuracy": accuracy,
        "cpu_seconds": read_json(path)["cpu"], "accepted": found,
    }  # fmt: skip


def measure(
    benchmarks: Sequence[str], trainings: Iterable[str], seeds: Iterable[int], folder: Path, workers: int
) -> Iterable[dict[str, Any]]:
    """Yield what `measure_one` returns for each combination, as soon as it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    jobs = [(training, name, seed, folder) for name in benchmarks for seed in seeds for training in trainings]
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        for done in as_completed([pool.submit(measure_one, *job) for job in jobs]):
            yield done.result()


def summary(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each training and detector: shares of images that are accepted, means over benchmarks and seeds."""
    rows = []
    for training, detector in dict.fromkeys((r["training"], name) for r in results for name in r["accepted"]):
        ours = [r for r in results if r["training"] == training]
        near, far = (
            {
                (r["benchmark"], key): [o["accepted"][detector][key] for o in ours if o["benchmark"] == r["benchmark"]]
                for r in ours
                for key in r["accepted"][detector]
                if key != "known" and key.endswith("-near") == is_near
            }
            for is_near in (True, False)
        )
        worst = max(far, key=lambda key: np.mean(far[key]))
        rows.append(
            {
                "training": training,
                "detector": detector,
                "runs": len(ours),
                "accuracy": float(np.mean([r["accuracy"] for r in ours])),
                "known": float(np.mean([r["accepted"][detector]["known"] for r in ours])),
                "near": float(np.mean([np.mean(shares) for shares in near.values()])),
                "far": float(np.mean([np.mean(shares) for shares in far.values()])),
                "worst far": float(np.mean(far[worst])),
                "worst set": f"{worst[1]} for {worst[0]}",
                "cpu seconds": float(np.mean([r["cpu_seconds"] for r in ours])),
            }
        )
    return rows
