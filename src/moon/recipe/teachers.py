"""The run folders of trained networks that another run learns from."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import Tensor

from moon.data import Benchmark
from moon.errors import DamagedCheckpoint
from moon.files import sha256
from moon.recipe.recipe import Recipe
from moon.records import read_record
from moon.training.checkpoint import load_tensors

_MODEL, _RESULT = "model.safetensors", "result.json"


def teacher_folders(names: str) -> list[Path]:
    """The run folders in a list of names, separated by commas."""
    return [Path(name.strip()) for name in names.split(",") if name.strip()]


def teachers_digest(names: str, benchmark: Benchmark) -> str:
    """A SHA-256 of the recipes and weights of all teachers, in their order.

    Raises:
        ValueError: If a folder is not that of a finished run on this benchmark.
    """
    parts = [f"{recipe.digest} {_digest(folder)}" for folder, recipe in _recipes(names, benchmark)]
    if not parts:
        raise ValueError(f"teachers={names!r} names no run folder")
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def read_teachers(recipe: Recipe, benchmark: Benchmark) -> list[tuple[Recipe, dict[str, Tensor]]]:
    """The recipe and the weights of each teacher of a run.

    Raises:
        ValueError: If a teacher is another one than when the recipe was made, or not that of a finished run.
    """
    if not recipe.teachers:
        return []
    if (found := teachers_digest(recipe.teachers, benchmark)) != recipe.teachers_sha256:
        raise ValueError(
            f"{recipe.teachers}: are not the teachers that the run was started with (their SHA-256 is {found[:12]}..., "
            f"that of the recipe {recipe.teachers_sha256[:12]}...); restore them, or start a new run"
        )
    return [(theirs, load_tensors(folder / _MODEL)) for folder, theirs in _recipes(recipe.teachers, benchmark)]


def _recipes(names: str, benchmark: Benchmark) -> list[tuple[Path, Recipe]]:
    found = []
    for folder in teacher_folders(names):
        recipe = Recipe.load(folder / "recipe.json")
        if recipe.benchmark != benchmark.name:
            raise ValueError(
                f"{folder}: knows the classes of {recipe.benchmark}, but the run is on {benchmark.name}; a teacher "
                "must know the same classes"
            )
        found.append((folder, recipe))
    return found


def _digest(folder: Path) -> str:
    """The SHA-256 of the weights of a finished run."""
    if not (folder / _RESULT).exists():
        raise ValueError(f"{folder}: the run is not finished, so it cannot teach; finish it first")
    try:
        expected, found = read_record(folder / _RESULT).get("model_sha256"), sha256(folder / _MODEL)
    except (OSError, ValueError) as error:
        raise DamagedCheckpoint(f"{folder}: the teacher cannot be read ({error})") from error
    if found != expected:
        raise DamagedCheckpoint(f"{folder / _MODEL}: is not the model this run wrote, so it cannot teach")
    return found
