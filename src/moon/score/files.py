"""The files that scoring writes into a run folder: writing and reading them.

scores.json   metrics per detector and unknown set, near and far means; temperatures; what was left out; how options
              were tuned
scores.npz    the scores themselves, `<detector>/<set>`, for figures and further statistics
known.npz     for each known test image: label, prediction, confidence and p_unknown of the logits as they are, first
              principal component
examples.npz  a few images of each set that MSP, or else the first detector, ranked best and worst
evidence/     the model's evidence on each set, if it is kept
mirrored/     the same four files for evidence averaged over each image and its mirror image; tables and reports use
              the files above
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moon.files import read_json, write_arrays, write_json
from moon.run.images import BenchmarkImages
from moon.score.temperatures import current_names, upgraded

_log = logging.getLogger(__name__)

MIRRORED = "mirrored"  # the subfolder of scores of mirrored images
KNOWN = "known"  # the key of the known test set among the scored sets; no set can have this name
Scores = dict[str, dict[str, NDArray]]  # detector -> set -> scores


def scores_folder(folder: Path, mirrored: bool) -> Path:
    """Where the scores of a run are."""
    return folder / MIRRORED if mirrored else folder


def is_writable(folder: Path) -> bool:
    """Whether scores can be written to a folder, or the folder can be created."""
    nearest = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return os.access(nearest, os.W_OK)


def digests(images: BenchmarkImages) -> dict[str, str]:
    """The SHA-256 of every set that is scored, by its name."""
    return {name: data.digest() for name, data in {KNOWN: images.splits["test"], **images.unknown}.items()}


def which_scored(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for scores to be comparable.

    Digests of the images, which sets are near and far, and precision and mirroring if they are not the default.
    """
    images = {key: summary.get(key) for key in ("sha256", "near", "far")}
    return images | {key: summary[key] for key in ("precision", "mirrored") if key in summary}


def read_summary(folder: Path | str, objective: str | None = None) -> dict[str, Any] | None:
    """Read `scores.json`.

    Files of older versions are read as the current version would have written them: if the objective normalises
    logits, their `ebo` at T = 1 is called `ebo:unscaled`, and so on.

    Args:
        folder: The run folder.
        objective: The objective of the run; None if the folder has its `recipe.json`.

    Returns:
        Its content, or None if it is missing or damaged.

    Example:
        >>> from moon import read_summary
        >>> read_summary("runs/not-scored") is None
        True
    """
    found = _read(Path(folder), objective)
    return None if found is None else found[0]


def _read(folder: Path, objective: str | None) -> tuple[dict[str, Any], dict[str, str]] | None:
    """The content of `scores.json`, and for each detector the name that the files have for it."""
    try:
        result = read_json(folder / "scores.json")
        names = {name: name for name in result["detectors"]}
    except (OSError, ValueError, KeyError):
        return None
    if "temperatures" in result:
        return result, names
    if objective is None and (objective := _objective(folder)) is None:
        _log.warning("%s: of an older version, without temperatures and recipe.json; all are taken as T = 1", folder)
        return result, names
    return upgraded(result, objective), current_names(names, objective)


def _objective(folder: Path) -> str | None:
    """The objective of the run whose scores are in a folder, or None if it is not there."""
    home = folder.parent if folder.name == MIRRORED else folder
    try:
        return read_json(home / "recipe.json")["objective"]
    except (OSError, ValueError, KeyError):
        return None


def read_scores(folder: Path | str, objective: str | None = None) -> tuple[dict[str, Any], Scores] | None:
    """Read `scores.json` and `scores.npz`.

    Args:
        folder: The run folder.
        objective: As for `read_summary`.

    Returns:
        The summary and the scores by detector and set, or None if either file is missing or damaged.

    Example:
        >>> from moon import read_scores
        >>> read_scores("runs/not-scored") is None
        True
    """
    folder = Path(folder)
    if (found := _read(folder, objective)) is None:
        return None
    result, names = found
    try:
        stored: Scores = {name: {} for name in names.values()}
        with np.load(folder / "scores.npz") as file:
            for key in file.files:
                detector, _, name = key.partition("/")
                stored[detector][name] = file[key]
        return result, {new: stored[old] for new, old in names.items()}
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def write_scores(folder: Path, result: dict[str, Any], scores: Scores, objective: str) -> None:
    """Write `scores.json` and `scores.npz`; scores of other detectors on the same images are kept.

    `result` and `scores` are extended by what is kept.
    """
    _keep_others(folder, result, scores, objective)
    write_json(folder / "scores.json", result)
    flat = {f"{detector}/{name}": values for detector, by_set in scores.items() for name, values in by_set.items()}
    write_arrays(folder / "scores.npz", flat)


def _keep_others(folder: Path, result: dict[str, Any], scores: Scores, objective: str) -> None:
    if (found := read_scores(folder, objective)) is None or which_scored(found[0]) != which_scored(result):
        return
    old, old_scores = found
    for name in old["detectors"]:
        if name not in result["detectors"] and name not in result["left_out"]:
            result["detectors"][name], scores[name] = old["detectors"][name], old_scores[name]
            for record in ("search", "temperatures"):
                if name in old[record]:
                    result[record][name] = old[record][name]
    result["left_out"] = {k: v for k, v in old["left_out"].items() if k not in result["detectors"]} | result["left_out"]
