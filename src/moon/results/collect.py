"""Find finished and scored runs and read what their folders contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moon.recipe import Recipe
from moon.run.folder import class_names, load_result, read_log
from moon.score.files import Scores, read_scores, read_summary


@dataclass(frozen=True)
class Run:
    """A finished, scored run. Arrays are read when they are first used, and are None if the folder has none.

    Attributes:
        folder: The run's folder.
        recipe: What was trained (recipe.json).
        result: What training produced (result.json).
        log: One entry per epoch (log.jsonl).
        summary: The metrics of every detector (scores.json).
    """

    folder: Path
    recipe: Recipe
    result: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @cached_property
    def scores(self) -> Scores | None:
        """The scores of every image, by detector and set (scores.npz)."""
        found = read_scores(self.folder)
        return None if found is None else found[1]

    @cached_property
    def predictions(self) -> dict[str, NDArray] | None:
        """Labels, predictions and confidences on the known test set (known.npz)."""
        return _arrays(self.folder / "known.npz")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the known classes (data.json); empty if the data set has none."""
        return class_names(self.folder)

    @cached_property
    def examples(self) -> dict[str, NDArray] | None:
        """The images with the most extreme scores, by `right/SET` and `wrong/SET` (examples.npz)."""
        return _arrays(self.folder / "examples.npz")


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read the finished, scored runs among some folders.

    Args:
        paths: Run folders, or folders that contain run folders.

    Returns:
        The runs, and one line for each run that is left out, with the reason.

    Raises:
        ValueError: If a path is not a folder, contains no run, or if no run is finished and scored.
    """
    runs: list[Run] = []
    left_out: list[str] = []
    names: set[str] = set()
    for path in paths:
        for folder in run_folders(path):
            if folder.name in names:
                left_out.append(f"{folder}: already included")
            elif not (folder / "result.json").exists():
                left_out.append(f"{folder.name}: not finished")
            elif (summary := read_summary(folder)) is None or not summary["detectors"]:
                left_out.append(f"{folder.name}: not scored; run `moon score {folder}`")
            else:
                names.add(folder.name)
                recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
                runs.append(Run(folder, recipe, result, read_log(folder), summary))
    if not runs:
        raise ValueError(f"none of the runs is finished and scored ({'; '.join(left_out)})")
    return runs, left_out


def run_folders(path: Path) -> list[Path]:
    """The folder itself if it is a run, else the runs in it."""
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; expected a run folder or a folder of run folders")
    if (path / "recipe.json").exists():
        return [path]
    inside = sorted(recipe.parent for recipe in path.glob("*/recipe.json"))
    if not inside:
        raise ValueError(f"{path} contains no run; expected a run folder or a folder of run folders")
    return inside


def _arrays(path: Path) -> dict[str, NDArray] | None:
    """The arrays of an .npz file, or None if it is missing or damaged."""
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
