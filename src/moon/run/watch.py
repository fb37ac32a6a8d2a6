"""The metrics on known images, and those that are logged after each epoch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from moon.data import Batches, DataSet, StreamedBatches, evaluation_batches
from moon.evidence import Evidence, autocast, read
from moon.metrics import accuracy, brier, ece, nll
from moon.run.images import BenchmarkImages
from moon.training.loop import Record

WATCHED = 256  # images of each unknown set that are evaluated after each epoch, for the log only


def known_metrics(evidence: Evidence) -> dict[str, float]:
    """Accuracy and calibration on known inputs, over the K known classes."""
    labels = evidence.labels
    assert labels is not None
    correct = evidence.prediction == labels
    return {
        "accuracy": accuracy(evidence.prediction, labels),
        "ece": ece(evidence.confidence, correct),
        "ece_10_bins": ece(evidence.confidence, correct, bins=10),
        "nll": nll(evidence.known, labels),
        "brier": brier(evidence.known, labels),
    }


def p_unknown(known: Evidence, unknown: Evidence | None) -> Record:
    """Mean p_{K+1} on correct, wrong and unknown inputs; empty for a K-way model."""
    if not known.is_open:
        return {}
    correct = known.prediction == known.labels
    parts = {"correct": known.unknown[correct], "wrong": known.unknown[~correct]}
    if unknown is not None:
        parts["unknown"] = unknown.unknown
    return {f"p_unknown_{name}": float(p.mean()) if len(p) else None for name, p in parts.items()}


def watcher(images: BenchmarkImages, device: torch.device, precision: torch.dtype) -> Callable[[nn.Module], Record]:
    """A function that evaluates the model after each epoch, in the run's precision: validation accuracy, p_unknown."""
    batch_size = 2000 if device.type == "cuda" else 500  # few large batches suit a GPU
    known_batches = evaluation_batches(images.splits["val"], images.benchmark, device, batch_size)
    # Evenly spaced, because sets are often sorted by class.
    samples = [
        data.take(np.arange(0, len(data.labels), max(1, len(data.labels) // WATCHED))[:WATCHED])
        for data in images.unknown.values()
    ]
    in_memory = [data for data in samples if isinstance(data, DataSet)]
    if in_memory:
        labels = np.concatenate([data.labels for data in in_memory])
        together = DataSet(np.concatenate([data.images for data in in_memory]), labels)
        samples = [together, *(data for data in samples if not isinstance(data, DataSet))]
    unknown_batches = [evaluation_batches(data, images.benchmark, device, batch_size) for data in samples]

    def evaluate(model: nn.Module, batches: Batches | StreamedBatches) -> Evidence:
        with autocast(model, device, precision):
            evidence = read(model, batches)
        return replace(evidence, logits=evidence.logits.float(), features=evidence.features.float())

    def watch(model: nn.Module) -> Record:
        known = evaluate(model, known_batches)
        assert known.labels is not None
        record: Record = {"val_accuracy": accuracy(known.prediction, known.labels)}
        unknown = None
        if unknown_batches and known.is_open:
            unknown = Evidence.concatenate(evaluate(model, batches) for batches in unknown_batches)
        return record | p_unknown(known, unknown)

    return watch
