"""The folder of a run: writing and reading its files.

recipe.json        the recipe
data.json          digests of the images it is trained on
log.jsonl          one line per epoch
checkpoints/       the two newest
model.safetensors  the trained weights, after the vote if there is one
result.json        metrics on known images, software and hardware; written last
todo.json          detectors and unknown sets to score with after training, for the workers of a grid
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.data import Benchmark, DataError
from moon.files import sha256, write_json
from moon.recipe import Recipe, build
from moon.records import read_record, write_record
from moon.run.identity import check_identity
from moon.run.images import BenchmarkImages
from moon.run.machine import usable_device
from moon.training import DamagedCheckpoint
from moon.training.checkpoint import load_tensors

REMAINING = "todo.json"


def claim(folder: Path, recipe: Recipe, images: BenchmarkImages) -> None:
    """Write the recipe and the data's digests into the folder; raise an error if it belongs to another run."""
    if (folder / "recipe.json").exists():
        _check_same(folder, Recipe.load(folder / "recipe.json"), recipe)
    else:
        write_json(folder / "recipe.json", recipe.to_json())
    check_data(folder, images)
    if not (folder / "data.json").exists():
        write_record(folder / "data.json", images.fingerprint())


def _check_same(folder: Path, old: Recipe, new: Recipe) -> None:
    """Raise a ValueError that names what differs between the recipe of a folder and the one to run there."""
    before, now = old.to_json(), new.to_json()
    # Files and teachers may be elsewhere now; their digests count.
    names = [name for name in now if name not in ("pretrained", "teachers")]
    changes = [f"{name} was {before[name]}, now {now[name]}" for name in names if before[name] != now[name]]
    if not changes:
        return
    advice = "choose another folder"
    if new.epochs != old.epochs:
        advice = f"the schedules of a run depend on its epochs, so it cannot be extended; {advice}"
    raise ValueError(f"{folder}: contains a run of another recipe ({'; '.join(changes)}); {advice}")


def check_data(folder: Path, images: BenchmarkImages | dict[str, Any]) -> None:
    """Raise a DataError if the run was started on other data than these images (or their fingerprint)."""
    if not (folder / "data.json").exists():
        return
    now = images if isinstance(images, dict) else images.fingerprint()
    begun = _load_json(folder / "data.json")
    # Names of classes may be added later; the digests of labels show whether classes were renumbered.
    if differs := [key for key in begun if key != "known" and begun[key] != now.get(key)]:
        what, remedy = "other images or labels", "a run keeps to the images it began with, so restore them"
        if differs == ["preparation"]:
            what, before = "another preparation", begun["preparation"]
            changed = {key: value for key, value in before.items() if now["preparation"].get(key) != value}
            remedy = f"restore it in benchmarks.toml ({', '.join(f'{k} = {v}' for k, v in changed.items())})"
        raise DataError(
            f"{folder}: was started with {what} of its benchmark ({', '.join(differs)}); {remedy}, "
            "or train again in another folder"
        )


def _load_json(path: Path) -> dict[str, Any]:
    """A JSON object that a run wrote."""
    try:
        return read_record(path)
    except ValueError as error:
        raise DamagedCheckpoint(f"{path}: is not the file this run wrote ({error}); delete it and run again") from error


def is_trained(folder: Path) -> bool:
    """Whether the run has finished training."""
    return (folder / "result.json").exists()


def is_done(folder: Path) -> bool:
    """Whether the run is trained and nothing is left to do in its folder."""
    return is_trained(folder) and not (folder / REMAINING).exists()


def load_result(folder: Path | str) -> dict[str, Any]:
    """Read `result.json` of a finished run.

    Args:
        folder: The run folder.

    Returns:
        Metrics on known images, density, seconds, software and hardware.

    Raises:
        ValueError: If the run is not finished.
        DamagedCheckpoint: If the file is damaged or belongs to another run.

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
    result = _load_json(folder / "result.json")
    check_identity(folder / "result.json", result, folder)
    return result


def check_model(folder: Path, result: dict[str, Any]) -> None:
    """Raise `DamagedCheckpoint` if the model of a finished run is missing or is not the one it wrote."""
    path = folder / "model.safetensors"
    if not path.exists():
        raise DamagedCheckpoint(f"{path}: the model of this finished run is missing; delete result.json to train again")
    if sha256(path) != result["model_sha256"]:
        raise DamagedCheckpoint(f"{path}: is not the model this run wrote; delete result.json to train again")


def class_names(folder: Path | str, count: int | None = None) -> tuple[str, ...]:
    """The names of the known classes of a run, by label; if its data set has none, "0" up to `count`, or nothing."""
    path = Path(folder) / "data.json"
    facts = _load_json(path) if path.exists() else {}
    return tuple(facts.get("known", {}).get("classes", ())) or tuple(map(str, range(count or 0)))


def trained_on(folder: Path | str) -> Benchmark:
    """The benchmark of a run as its folder describes it: known classes and preparation, without unknown sets."""
    folder = Path(folder)
    recipe = Recipe.load(folder / "recipe.json")
    facts = _load_json(folder / "data.json")
    known, how = facts["known"], facts["preparation"]
    return Benchmark(
        recipe.benchmark, near=(), far=(), num_known=known["num_known"], channels=known["channels"],
        size=how["size"] if isinstance(how["size"], int) else tuple(how["size"]), mean=tuple(how["mean"]),
        std=tuple(how["std"]), net=recipe.net, crop=how["crop"], flip=how["flip"],
    )  # fmt: skip


def load(folder: Path | str, device: torch.device | str = "cpu") -> nn.Module:
    """Load the trained network of a finished run. The data root is not needed.

    Args:
        folder: The run folder.
        device: Where to put the network.

    Returns:
        The network in evaluation mode.

    Raises:
        ValueError: If the folder is not that of a finished run, or the device cannot be used.
        DamagedCheckpoint: If the model file is missing or damaged.
    """
    folder = Path(folder)
    recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
    check_model(folder, result)
    model = build.network(recipe, trained_on(folder), usable_device(device))
    model.load_state_dict(load_tensors(folder / "model.safetensors"))
    return model.eval()
