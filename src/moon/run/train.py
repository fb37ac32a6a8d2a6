"""Train one run in its folder; an interrupted run resumes from its last checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.files import own_folder, remove_leftovers, sha256
from moon.objectives import Objective
from moon.recipe import Recipe, build
from moon.records import write_record
from moon.run.folder import check_model, claim, is_trained, load_result
from moon.run.identity import check_identity, identity
from moon.run.images import BenchmarkImages
from moon.run.learning import early_epochs, warn_early
from moon.run.log import Log, log_digest, read_log
from moon.run.loggers import check_loggers
from moon.run.machine import (
    conditions,
    cudnn_mode,
    hardware,
    restore_conditions,
    software,
    threads_kept,
    usable_device,
)
from moon.run.watch import known_metrics, watcher
from moon.sparse import SparseTopology
from moon.sparse.flops import layer_costs, net_cost
from moon.sparse.summary import matrices_of, share_of_zeros
from moon.sparse.weights import sparse_weights
from moon.suggest import first_line
from moon.training import Checkpoints, Training, locked
from moon.training.checkpoint import save_tensors
from moon.training.loop import Record
from moon.training.ranks import Ranks

_log = logging.getLogger(__name__)


def train_run(
    recipe: Recipe,
    folder: Path | str,
    images: BenchmarkImages,
    *,
    device: torch.device | str = "cpu",
    checkpoint_seconds: float = 30.0,
    on_step: Callable[[int, int, Callable[[], float]], object] | None = None,
    on_epoch: Callable[[Record], object] | None = None,
    on_start: Callable[[Training], object] | None = None,
    ranks: Ranks | None = None,
    captured: bool | None = None,
    exact: bool = True,
    loggers: str | Sequence[str] | None = None,
) -> dict[str, Any]:
    """Train a recipe in its folder, or resume it from its last checkpoint.

    If the run is already finished, its result is returned.

    Args:
        recipe: The run.
        folder: Its folder; created if it does not exist.
        images: The images of its benchmark.
        device: Where to train.
        checkpoint_seconds: Minimum time between checkpoints.
        on_step: Called as `on_step(epoch, step, loss)`; only calling `loss()` waits for the device.
        on_epoch: Called with the record of each epoch.
        on_start: Called with the training before its first step.
        ranks: This process among several that train as one; only the first writes.
        captured: Whether steps are replayed from CUDA graphs; None: where possible.
        exact: Whether the result is reproducible bit for bit with the same software, hardware, and number of processes
            and CPU threads. A resumed run then gets as many threads as before. Otherwise the fastest kernels are used
            on a GPU, and `result.json` says why it is not exact.
        loggers: Where the log is written besides `log.jsonl`, one name or several: "tensorboard", "wandb" (Weights &
            Biases, offline) and "csv". None: "tensorboard" if it is installed. One that fails does not end the run.

    Returns:
        The content of `result.json`.

    Raises:
        ValueError: If the recipe is invalid, the device cannot be used, or the run cannot be resumed exactly (other
            number of processes).
        DamagedCheckpoint: If files of the folder are damaged, or are those of another run.

    Example:
        >>> import tempfile
        >>> from moon import BenchmarkImages, make_recipe, train_run
        >>> images = BenchmarkImages.open("data", "digits")  # embedded
        >>> recipe = make_recipe("digits", "cross-entropy", topology="static", epochs=1, batch_size=512)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train_run(recipe, folder, images)
        >>> f"{result['density']:.2f}"
        '0.05'
    """
    folder, ranks = Path(folder), ranks or Ranks()
    if recipe.benchmark != images.benchmark.name:
        raise ValueError(f"the recipe is for {recipe.benchmark}, but the images are those of {images.benchmark.name}")
    loggers = check_loggers(loggers)
    if not is_trained(folder):  # the result of a finished run needs no device
        device = usable_device(device)
    with cudnn_mode(exact), threads_kept():
        if not ranks.is_first:
            return _follow(recipe, folder, images, ranks, device, exact)
        with locked(folder):
            for part in (folder, folder / "checkpoints"):
                remove_leftovers(part)
            if is_trained(folder):
                claim(folder, recipe, images)  # writes data.json if it is missing; the result is checked against it
                check_model(folder, load_result(folder))
                ranks.wait()
                return load_result(folder)
            # Invalid recipes fail here, before anything is written.
            training = build.training(recipe, images.benchmark, images.splits["train"], device, images.outliers, ranks)
            training.captured = captured
            claim(folder, recipe, images)
            checkpoints = Checkpoints(own_folder(folder / "checkpoints"))
            inexact = [] if exact else ["trained with exact=False"]
            if (found := checkpoints.latest()) is not None:
                inexact += _resume(folder, training, found, device, ranks, exact)
                _log.info("resuming from epoch %d of %d", training.next_epoch, recipe.epochs)
            if isinstance(topology := training.topology, SparseTopology) and topology.rewires:
                changes, every = topology.schedule.changes, topology.schedule.delta_t
                _log.info("%s: %d mask update(s), every %d step(s)", type(topology).__name__, changes, every)
            if training.topology.masks:
                for line in training.topology.summary().splitlines():
                    _log.info("%s", line)
            facts = conditions(device, ranks.count) | {"inexact": list(dict.fromkeys(inexact))}
            checkpoints.about = facts | identity(folder)
            ranks.wait()  # the others load the same checkpoint
            if on_start is not None:
                on_start(training)
            log = Log(folder, training.next_epoch, loggers)
            model = _train(recipe, log, images, training, checkpoints, checkpoint_seconds, on_step, on_epoch)
            save_tensors(folder / "model.safetensors", dict(model.state_dict()))
            write_record(folder / "result.json", _result(recipe, folder, images, training, model, device, facts))
            ranks.wait()
            return load_result(folder)


def _train(
    recipe: Recipe,
    log: Log,
    images: BenchmarkImages,
    training: Training,
    checkpoints: Checkpoints,
    checkpoint_seconds: float,
    on_step: Callable[[int, int, Callable[[], float]], object] | None,
    on_epoch: Callable[[Record], object] | None,
) -> nn.Module:
    """Train to the end, with a log."""

    early = early_epochs(recipe)

    def record_epoch(record: Record) -> None:
        log.write(record)
        found = record["val_accuracy"]
        if early is not None and record["epoch"] == early - 1 and found is not None:
            warn_early(found, images.splits["val"].labels, early, recipe)
        if on_epoch is not None:
            on_epoch(record)

    try:
        return training.run(
            checkpoints=checkpoints,
            checkpoint_seconds=checkpoint_seconds,
            watch=watcher(images, training.device, getattr(torch, recipe.precision)),
            on_step=on_step,
            on_epoch=record_epoch,
        )
    finally:
        log.close()


def _result(
    recipe: Recipe,
    folder: Path,
    images: BenchmarkImages,
    training: Training,
    model: nn.Module,
    device: torch.device | str,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """The content of `result.json`."""
    inexact = facts["inexact"]
    return {
        **identity(folder),
        "known": known_metrics(images.evidence(model, images.splits["test"])),
        "density": training.topology.density(),
        "layer_density": {n: float(mask.float().mean()) for n, mask in training.masks.items()},
        "zeros": share_of_zeros(matrices_of(model).values()),  # also of matrices that stay dense
        "turnover": training.topology.turnover(),
        "flops": _flops_or_none(model, recipe, images, training),
        "loop": "captured" if training.is_captured else "plain",
        "exact": not inexact,
        **({"inexact": inexact} if inexact else {}),
        "threads": facts["threads"],
        "ranks": facts["ranks"],
        "voters": 0 if training.vote is None else training.vote.voters,
        "seconds": round(sum(line["seconds"] for line in read_log(folder)) + training.election_seconds, 2),
        "images": {split: len(data.labels) for split, data in images.splits.items()},
        "model_sha256": sha256(folder / "model.safetensors"),
        "log_sha256": log_digest(folder),
        "software": software(),
        "hardware": hardware(device),
    }


def _flops_or_none(model: nn.Module, recipe: Recipe, images: BenchmarkImages, training: Training) -> Any:
    """`flops`; None with a warning if they cannot be counted, which must not cost a trained network."""
    try:
        return flops(model, recipe, images, training)
    except Exception as error:  # the network's own code may raise anything
        _log.warning("the FLOPs of %s are not counted, null in result.json: %s", recipe.net, first_line(error))
        return None


def flops(model: nn.Module, recipe: Recipe, images: BenchmarkImages, training: Training) -> dict[str, Any]:
    """FLOPs of one image's inference, dense and sparse, and of the whole training.

    Training includes rotated copies and the teachers' forward passes. The vote, outliers and blended copies are not
    counted.
    """
    benchmark = images.benchmark
    densities = {name: float(mask.float().mean()) for name, mask in training.masks.items()}
    shape = benchmark.input_shape
    layers = layer_costs(model, shape, densities)
    cost = net_cost(layers)
    per_image = cost.training(type(training.topology), recipe.delta_t_steps, recipe.t_end_share)
    objective, count = training.setup.objective, recipe.epochs * len(images.splits["train"].labels)
    copies = len(objective.step_inputs(torch.zeros(2, *shape))) / 2
    teachers = [each for part in objective.modules() if isinstance(part, Objective) for each in part.networks]
    taught = sum(net_cost(layer_costs(teacher, shape, _densities(teacher))).sparse for teacher in teachers)
    return {
        "inference": cost.sparse,
        "inference_dense": cost.dense,
        "training": None if per_image is None else count * (copies * per_image + taught),
        "layers": {name: layer.sparse for name, layer in layers.items()},
    }


def _densities(model: nn.Module) -> dict[str, float]:
    """The share of non-zero numbers in each weight of a trained network."""
    return {name: float((weight != 0).float().mean()) for name, weight in sparse_weights(model).items()}


def _resume(
    folder: Path,
    training: Training,
    found: tuple[int, dict[str, Any]],
    device: torch.device | str,
    ranks: Ranks,
    exact: bool,
) -> list[str]:
    """Load a checkpoint; return why the result of the run is not exact, if it is not."""
    number, state = found
    about = state.get("about", {})
    check_identity(folder / "checkpoints" / f"{number:06d}", about, folder)
    inexact = list(about.get("inexact", []))
    training.load_state_dict(state)
    return inexact + restore_conditions(folder, about, device, ranks.count, exact)


def _follow(
    recipe: Recipe, folder: Path, images: BenchmarkImages, ranks: Ranks, device: torch.device | str, exact: bool
) -> dict[str, Any]:
    """Train in a process other than the first: from the same checkpoint, without writing files."""
    training = build.training(recipe, images.benchmark, images.splits["train"], device, images.outliers, ranks)
    ranks.wait()
    if not is_trained(folder):
        if (found := Checkpoints(folder / "checkpoints").latest()) is not None:
            _resume(folder, training, found, device, ranks, exact)
        training.run()
        ranks.wait()
    return load_result(folder)
