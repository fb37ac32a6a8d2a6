"""One run in its folder: trained once, whatever interrupts it, and re-created from what the folder holds.

recipe.json        what was asked for
log.jsonl          one line an epoch
checkpoints/       the two newest
model.safetensors  the trained (elected) weights
result.json        metrics on known data, and what it ran on; written last
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from moon import __version__
from moon.data import Batches, Benchmark, DataError, DataSet, Streams
from moon.evidence import Evidence, read
from moon.files import sha256, write_json, write_text
from moon.metrics import accuracy, brier, ece, nll
from moon.recipe import build
from moon.recipe.recipe import Recipe
from moon.run.images import Bench
from moon.sparse.flops import layer_costs, net_cost
from moon.training import Checkpoints, DamagedCheckpoint, Training, locked
from moon.training.checkpoint import load_tensors, save_tensors
from moon.training.loop import Record
from moon.training.ranks import Ranks

WATCHED = 256  # images of each unknown set looked at after each epoch: logged, never used


def known_metrics(evidence: Evidence) -> dict[str, float]:
    """Accuracy and honesty on known inputs, over the K known classes."""
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
    """Mean p_{K+1} on correct, wrong and unknown inputs: whether the extra output fills. Empty for a K-way model."""
    if not known.is_open:
        return {}
    correct = known.prediction == known.labels
    parts = {"correct": known.unknown[correct], "wrong": known.unknown[~correct]}
    if unknown is not None:
        parts["unknown"] = unknown.unknown
    return {f"p_unknown_{name}": float(p.mean()) if len(p) else None for name, p in parts.items()}


def watcher(bench: Bench, device: torch.device, precision: torch.dtype) -> Callable[[nn.Module], Record]:
    """What is looked at after each epoch, in the run's precision: accuracy on val, and p_unknown."""
    size = 2000 if device.type == "cuda" else 500  # a GPU is asked seldom for much
    val = bench.batches(bench.known["val"], device, size)
    # Evenly spread: sets are often sorted by class.
    sample = [
        data.take(np.arange(0, len(data.labels), max(1, len(data.labels) // WATCHED))[:WATCHED])
        for data in bench.unknown.values()
    ]
    arrays = [data for data in sample if isinstance(data, DataSet)]
    if arrays:
        together = DataSet(*(np.concatenate(parts) for parts in zip(*arrays, strict=True)))
        sample = [together, *(data for data in sample if not isinstance(data, DataSet))]
    unknown = [bench.batches(data, device, size) for data in sample]

    def look_at(model: nn.Module, batches: Batches | Streams) -> Evidence:
        with torch.autocast(device.type, precision, enabled=precision != torch.float32):
            evidence = read(model, batches)
        return replace(evidence, logits=evidence.logits.float(), features=evidence.features.float())

    def watch(model: nn.Module) -> Record:
        known = look_at(model, val)
        record: Record = {"val_accuracy": accuracy(known.prediction, known.labels)}
        strange = None
        if unknown and known.is_open:
            strange = Evidence.concatenate(look_at(model, batches) for batches in unknown)
        return record | p_unknown(known, strange)

    return watch


class Log:
    """`log.jsonl`: one JSON line an epoch, cut back to the checkpoint on resuming; TensorBoard where installed."""

    def __init__(self, folder: Path, next_epoch: int) -> None:
        self.path = folder / "log.jsonl"
        kept = [line for line in read_log(folder) if line["epoch"] < next_epoch]
        write_text(self.path, "".join(json.dumps(line) + "\n" for line in kept))
        self.board = None
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            pass
        else:
            self.board = SummaryWriter(folder / "tensorboard", purge_step=next_epoch)

    def write(self, record: Record) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        if self.board is not None:
            for name, value in record.items():
                if name != "epoch" and value is not None:
                    self.board.add_scalar(name, value, record["epoch"])

    def close(self) -> None:
        if self.board is not None:
            self.board.close()


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run; a line that a kill cut short is left out."""
    path = folder / "log.jsonl"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def run(
    recipe: Recipe,
    folder: Path,
    bench: Bench,
    *,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 30.0,
    say: Callable[[str], object] = print,
    on_step: Callable[[int, int, Callable[[], float]], object] | None = None,
    on_epoch: Callable[[Record], object] | None = None,
    on_start: Callable[[Training], object] | None = None,
    ranks: Ranks | None = None,
    captured: bool | None = None,
    exact: bool = True,
) -> dict[str, Any]:
    """Train the recipe in its folder, or go on from its last checkpoint, and return the result.

    A finished run is only read. `captured` says whether steps must be, or None: where they can. Of an `exact` run every
    bit follows from the recipe, on a GPU too; otherwise it takes the fastest kernels, whose sums have no fixed order.
    `on_start` sees the training before its first step. Of several processes (`ranks`) the first one writes; the others
    train with it and return what they read of the result.
    """
    ranks = ranks or Ranks()
    if not ranks.is_first:
        return _follow(recipe, folder, bench, ranks, device, exact)
    with locked(folder):
        if (folder / "result.json").exists():
            _check_model(folder, load_result(folder))
            ranks.wait()
            _claim(folder, recipe, bench)
            return load_result(folder)
        set_exact(exact)
        # Refuses before it is written.
        training = build.training(recipe, bench.row, bench.known["train"], device, bench.outliers, ranks)
        training.captured = captured
        _claim(folder, recipe, bench)
        checkpoints = Checkpoints(folder / "checkpoints")
        if (found := checkpoints.latest(say)) is not None:
            training.load_state_dict(found[1])
            say(f"going on from epoch {training.next_epoch} of {recipe.epochs}")
        _exact_so_far(folder, exact)
        ranks.wait()  # the others read the same checkpoint
        if on_start is not None:
            on_start(training)
        log = Log(folder, training.next_epoch)

        def record_epoch(record: Record) -> None:
            log.write(record)
            if on_epoch is not None:
                on_epoch(record)

        try:
            model = training.run(
                checkpoints=checkpoints,
                checkpoint_seconds=checkpoint_seconds,
                watch=watcher(bench, torch.device(device), getattr(torch, recipe.precision)),
                on_step=on_step,
                on_epoch=record_epoch,
                say=say,
            )
        finally:
            log.close()
        save_tensors(folder / "model.safetensors", dict(model.state_dict()))
        result = {
            "known": known_metrics(bench.read(model, bench.known["test"])),
            "density": training.topology.density(),
            "layer_density": {n: float(mask.float().mean()) for n, mask in training.masks.items()},
            "turnover": training.topology.turnover(),
            "flops": flops(model, recipe, bench, training),
            "loop": "captured" if training.is_captured else "plain",
            "exact": _exact_so_far(folder, exact),
            "voters": 0 if training.vote is None else training.vote.voters,
            "seconds": round(sum(line["seconds"] for line in read_log(folder)) + training.election_seconds, 2),
            "images": {split: len(data.labels) for split, data in bench.known.items()},
            "model_sha256": sha256(folder / "model.safetensors"),
            "software": software(),
            "hardware": hardware(device),
        }
        write_json(folder / "result.json", result)
        ranks.wait()
        return result


def flops(model: nn.Module, recipe: Recipe, bench: Bench, training: Training) -> dict[str, Any]:
    """Of inference of one image, dense and under the masks, and of the whole training; the vote's are not counted."""
    row = bench.row
    densities = {name: float(mask.float().mean()) for name, mask in training.masks.items()}
    layers = layer_costs(model, (row.channels, row.size, row.size), densities)
    cost = net_cost(layers)
    of_image = cost.training(type(training.topology), recipe.delta_t_steps, recipe.t_end_share)
    images = recipe.epochs * len(bench.known["train"].labels)
    return {
        "inference": cost.sparse,
        "inference_dense": cost.dense,
        "training": None if of_image is None else images * of_image,
        "layers": {name: layer.sparse for name, layer in layers.items()},
    }


def set_exact(exact: bool) -> None:
    """Whether every sum on a GPU is taken in a fixed order, or by the kernel that is found to be the fastest."""
    torch.backends.cudnn.deterministic = exact
    torch.backends.cudnn.benchmark = not exact


def _exact_so_far(folder: Path, exact: bool) -> bool:
    """Whether all parts of a run were exact, this one included; one that is not leaves a mark in the folder."""
    if not exact:
        (folder / "inexact").touch()
    return not (folder / "inexact").exists()


def _follow(
    recipe: Recipe, folder: Path, bench: Bench, ranks: Ranks, device: torch.device | str, exact: bool
) -> dict[str, Any]:
    """The part of a process that does not write: train from the same checkpoint as the first one."""
    set_exact(exact)
    training = build.training(recipe, bench.row, bench.known["train"], device, bench.outliers, ranks)
    ranks.wait()
    if not (folder / "result.json").exists():
        if (found := Checkpoints(folder / "checkpoints").latest(lambda _: None)) is not None:
            training.load_state_dict(found[1])
        training.run()
        ranks.wait()
    return load_result(folder)


def _claim(folder: Path, recipe: Recipe, bench: Bench) -> None:
    """Write what the run is into its folder, or refuse a folder that holds something else."""
    if (folder / "recipe.json").exists():
        if Recipe.load(folder / "recipe.json") != recipe:
            raise ValueError(f"{folder}: holds a run of another recipe; give another --out")
    else:
        write_json(folder / "recipe.json", recipe.to_json())
    check_data(folder, bench)
    if not (folder / "data.json").exists():
        write_json(folder / "data.json", bench.fingerprint())


def check_data(folder: Path, bench: Bench | dict[str, Any]) -> None:
    """Refuse a run that was begun on other data than these, a bench or its fingerprint."""
    if not (folder / "data.json").exists():
        return
    now = bench if isinstance(bench, dict) else bench.fingerprint()
    begun = _load_json(folder / "data.json", "train")
    if differs := [key for key in begun if begun[key] != now.get(key)]:
        what = "another preparation" if differs == ["preparation"] else "other images or labels"
        raise DataError(
            f"{folder}: was begun on {what} of its benchmark ({', '.join(differs)}); bring them back, "
            "or give another --out"
        )


def _load_json(path: Path, key: str) -> dict[str, Any]:
    """A JSON object that must have this key."""
    try:
        value = json.loads(path.read_text())
        value[key]
        return value
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(f"{path}: is not what this run wrote ({error}); delete it and run again") from error


def load_result(folder: Path) -> dict[str, Any]:
    if not (folder / "result.json").exists():
        raise ValueError(f"{folder}: the run is not finished; start it again with the same command")
    return _load_json(folder / "result.json", "model_sha256")


def _check_model(folder: Path, result: dict[str, Any]) -> None:
    """Refuse a finished run whose model is lost or another."""
    path = folder / "model.safetensors"
    if not path.exists():
        raise DamagedCheckpoint(
            f"{path}: the model of this finished run is missing; delete result.json and train again"
        )
    if sha256(path) != result["model_sha256"]:
        raise DamagedCheckpoint(f"{path}: is not the model this run wrote; delete result.json and train again")


def load_model(folder: Path, row: Benchmark, device: torch.device | str = "cpu") -> nn.Module:
    """The trained network of a finished run."""
    recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
    _check_model(folder, result)
    model = build.network(recipe, row, device)
    model.load_state_dict(load_tensors(folder / "model.safetensors"))
    return model.eval()


def software() -> dict[str, str]:
    return {"moon": __version__, "torch": torch.__version__, "python": platform.python_version()}


def hardware(device: torch.device | str) -> str:
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"{device.type}, {platform.machine()}, {threads} thread{'s' if threads > 1 else ''}"
