"""Finished runs as their folders tell them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moon.recipe.recipe import Recipe
from moon.run.train import load_result, read_log
from moon.score.score import Scores, read_scores, read_summary


@dataclass(frozen=True)
class Run:
    """All that a run's folder says; scores and arrays may be missing where only summaries were kept."""

    folder: Path
    recipe: Recipe
    result: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @cached_property
    def scores(self) -> Scores | None:
        found = read_scores(self.folder)
        return None if found is None else found[1]

    @cached_property
    def known(self) -> dict[str, NDArray] | None:
        return _arrays(self.folder / "known.npz")

    @cached_property
    def examples(self) -> dict[str, NDArray] | None:
        return _arrays(self.folder / "examples.npz")


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The finished, scored runs in these folders or in folders of them, and a line for each that is left out."""
    runs: list[Run] = []
    left_out: list[str] = []
    seen: set[str] = set()
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path}: no such folder; give run folders, or folders of them")
        inside = sorted(p.parent for p in path.glob("*/recipe.json"))
        if not inside and not (path / "recipe.json").exists():
            raise ValueError(f"{path}: no run in it; give run folders, or folders of them")
        for folder in [path] if (path / "recipe.json").exists() else inside:
            if folder.name in seen:
                left_out.append(f"{folder}: is on the page already")
            elif not (folder / "result.json").exists():
                left_out.append(f"{folder.name}: is not finished")
            elif (summary := read_summary(folder)) is None or not summary["detectors"]:
                left_out.append(f"{folder.name}: is not scored; moon score {folder}")
            else:
                seen.add(folder.name)
                recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
                runs.append(Run(folder, recipe, result, read_log(folder), summary))
    if not runs:
        raise ValueError(f"no finished and scored run to report ({'; '.join(left_out)})")
    return runs, left_out


def _arrays(path: Path) -> dict[str, NDArray] | None:
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
