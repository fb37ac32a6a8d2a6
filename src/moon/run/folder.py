"""The folder of a run: writing and reading its files.

recipe.json        the recipe
data.json          digests of the images it is trained on
log.jsonl          one line per epoch
checkpoints/       the two newest
model.safetensors  the trained weights, after the vote if there is one
result.json        metrics on known images, software and hardware; written last
todo.json          detectors to score with after training, for the workers of a grid
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.data import Benchmark, DataError, find_benchmark
from moon.files import sha256, write_json, write_text
from moon.recipe import Recipe, build
from moon.run.images import BenchmarkImages
from moon.training import DamagedCheckpoint
from moon.training.checkpoint import load_tensors
from moon.training.loop import Record

TODO = "todo.json"
JOB = "job"  # the lock that a grid worker holds from training to scoring


class Log:
    """`log.jsonl`: one JSON line per epoch; resuming removes the lines after the checkpoint. Also writes TensorBoard
    event files if tensorboard is installed."""

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
    """The lines of `log.jsonl`; an incomplete last line, left by a killed process, is skipped."""
    path = folder / "log.jsonl"
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return lines


def claim(folder: Path, recipe: Recipe, images: BenchmarkImages) -> None:
    """Write the recipe and the data's digests into the folder; raise an error if it belongs to another run."""
    if (folder / "recipe.json").exists():
        if Recipe.load(folder / "recipe.json") != recipe:
            raise ValueError(f"{folder}: contains a run of another recipe; choose another folder")
    else:
        write_json(folder / "recipe.json", recipe.to_json())
    check_data(folder, images)
    if not (folder / "data.json").exists():
        write_json(folder / "data.json", images.fingerprint())


def check_data(folder: Path, images: BenchmarkImages | dict[str, Any]) -> None:
    """Raise a DataError if the run was started on other data than these images (or their fingerprint)."""
    if not (folder / "data.json").exists():
        return
    now = images if isinstance(images, dict) else images.fingerprint()
    begun = _load_json(folder / "data.json", "train")
    if differs := [key for key in begun if begun[key] != now.get(key)]:
        what = "another preparation" if differs == ["preparation"] else "other images or labels"
        raise DataError(
            f"{folder}: was started with {what} of its benchmark ({', '.join(differs)}); restore them, "
            "or choose another folder"
        )


def _load_json(path: Path, key: str) -> dict[str, Any]:
    """A JSON object that must have this key."""
    try:
        value = json.loads(path.read_text())
        value[key]
        return value
    except (ValueError, TypeError, KeyError) as error:
        raise DamagedCheckpoint(f"{path}: is not the file this run wrote ({error}); delete it and run again") from error


def find_run(parent: Path, recipe: Recipe) -> Path:
    """The folder of a run among others.

    Args:
        parent: A folder of run folders.
        recipe: The run.

    Returns:
        `parent / recipe.name`, or an existing folder that an earlier version named.
    """
    folders = [parent / name for name in (recipe.name, *recipe.earlier_names)]
    return next((folder for folder in folders if (folder / "recipe.json").exists()), folders[0])


def is_trained(folder: Path) -> bool:
    """Whether the run has finished training."""
    return (folder / "result.json").exists()


def todo_of(folder: Path) -> list[str]:
    """The detectors that the run must still be scored with."""
    try:
        return json.loads((folder / TODO).read_text())["detectors"]
    except FileNotFoundError:
        return []


def is_done(folder: Path) -> bool:
    """Whether the run is trained and nothing is left to do in its folder."""
    return is_trained(folder) and not (folder / TODO).exists()


def load_result(folder: Path | str) -> dict[str, Any]:
    """Read `result.json` of a finished run.

    Args:
        folder: The run folder.

    Returns:
        Metrics on known images, density, seconds, software and hardware.

    Raises:
        ValueError: If the run is not finished.

    Example:
        >>> from moon import load_result
        >>> load_result("runs/unfinished")
        Traceback (most recent call last):
            ...
        ValueError: runs/unfinished: the run is not finished; start it again with the same command
    """
    folder = Path(folder)
    if not is_trained(folder):
        raise ValueError(f"{folder}: the run is not finished; start it again with the same command")
    return _load_json(folder / "result.json", "model_sha256")


def check_model(folder: Path, result: dict[str, Any]) -> None:
    """Raise `DamagedCheckpoint` if the model of a finished run is missing or is not the one it wrote."""
    path = folder / "model.safetensors"
    if not path.exists():
        raise DamagedCheckpoint(f"{path}: the model of this finished run is missing; delete result.json to train again")
    if sha256(path) != result["model_sha256"]:
        raise DamagedCheckpoint(f"{path}: is not the model this run wrote; delete result.json to train again")


def load_model(
    folder: Path | str,
    benchmark: Benchmark | None = None,
    device: torch.device | str = "cpu",
    root: Path | str = "data",
) -> nn.Module:
    """Load the trained network of a finished run.

    Args:
        folder: The run folder.
        benchmark: The run's benchmark; looked up by the recipe's name if it is not given.
        device: Where to put the network.
        root: The data root, where a benchmark of your own is looked up.

    Returns:
        The network in evaluation mode.

    Raises:
        ValueError: If the run is not finished.
        DamagedCheckpoint: If the model file is missing or damaged.

    Example:
        >>> import tempfile
        >>> from moon import BenchmarkImages, load_model, make_recipe, train_run
        >>> recipe = make_recipe("digits", "cross-entropy", topology="static", epochs=1, batch_size=512)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = train_run(recipe, folder, BenchmarkImages.open("data", "digits"))
        ...     model = load_model(folder)
        >>> model.fc.out_features
        10
    """
    folder = Path(folder)
    recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
    check_model(folder, result)
    benchmark = benchmark or find_benchmark(Path(root), recipe.benchmark)
    model = build.network(recipe, benchmark, device)
    model.load_state_dict(load_tensors(folder / "model.safetensors"))
    return model.eval()
