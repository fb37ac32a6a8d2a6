"""Find finished and scored runs and read what their folders contain."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from moon.errors import DamagedCheckpoint
from moon.recipe import Recipe
from moon.run.folder import class_names, load_result
from moon.run.log import log_digest, read_log
from moon.score.files import Scores, load_summary, read_arrays, read_scores


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
        return read_arrays(self.folder, "known.npz")

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the known classes (data.json); empty if the data set has none."""
        return class_names(self.folder)

    @cached_property
    def examples(self) -> dict[str, NDArray] | None:
        """The images with the most extreme scores, by `right/SET` and `wrong/SET` (examples.npz)."""
        return read_arrays(self.folder, "examples.npz")


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read the finished, scored runs among run folders, or folders of them; a line says why each other is left out.

    Raises:
        ValueError: If a path is not a folder, contains no run, or if no run is finished and scored.
    """
    runs, left_out = read_runs(folder for path in paths for folder in run_folders(path))
    if not runs:
        raise ValueError(f"none of the runs is finished and scored ({'; '.join(left_out)})")
    return runs, left_out


def read_runs(folders: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """Read the finished, scored runs among some run folders, as `collect` does; there may be none."""
    runs: list[Run] = []
    left_out: list[str] = []
    names: set[str] = set()
    for folder in folders:
        if folder.name in names:
            left_out.append(f"{folder}: already included")
        elif not (folder / "result.json").exists():
            left_out.append(f"{folder.name}: not finished")
        else:
            try:
                runs.append(_read(folder))
                names.add(folder.name)
            except (DamagedCheckpoint, OSError, ValueError) as error:  # the others are shown
                left_out.append(str(error) if str(folder) in str(error) else f"{folder.name}: {error}")
    return runs, left_out


def _read(folder: Path) -> Run:
    """Read a finished run; an error says why that is impossible."""
    recipe, result, log = Recipe.load(folder / "recipe.json"), load_result(folder), read_log(folder)
    class_names(folder)  # fails if data.json is damaged
    if result.get("log_sha256", "") and result["log_sha256"] != log_digest(folder):
        raise DamagedCheckpoint(f"{folder / 'log.jsonl'}: is not the complete log of this run; restore it")
    try:
        summary = load_summary(folder)
    except FileNotFoundError:
        summary = {"detectors": {}}
    if not summary["detectors"]:
        raise ValueError(f"not scored; run `moon score {folder}`")
    return Run(folder, recipe, result, log, summary)


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
