"""The files that scoring writes into a run folder: writing and reading them.

scores.json   metrics per detector and unknown set, near and far means; what was left out; how options were tuned
scores.npz    the scores themselves, `<detector>/<set>`, for figures and further statistics
known.npz     for each known test image: label, prediction, confidence, p_unknown, first principal component
examples.npz  a few images of each set that MSP, or else the first detector, ranked best and worst
evidence/     the model's evidence on each set, if it is kept
mirrored/     the same four files for evidence averaged over each image and its mirror image; tables and reports use
              the files above
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from moon.files import read_json, write_arrays, write_json
from moon.run.images import BenchmarkImages

KNOWN = "known"  # the key of the known test set among the scored sets; no set can have this name
Scores = dict[str, dict[str, NDArray]]  # detector -> set -> scores


def scores_folder(folder: Path, mirrored: bool) -> Path:
    """Where the scores of a run are."""
    return folder / "mirrored" if mirrored else folder


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


def read_summary(folder: Path | str) -> dict[str, Any] | None:
    """Read `scores.json`.

    Args:
        folder: The run folder.

    Returns:
        Its content, or None if it is missing or damaged.

    Example:
        >>> from moon import read_summary
        >>> read_summary("runs/not-scored") is None
        True
    """
    try:
        result = read_json(Path(folder) / "scores.json")
        result["detectors"]
        return result
    except (OSError, ValueError, KeyError):
        return None


def read_scores(folder: Path | str) -> tuple[dict[str, Any], Scores] | None:
    """Read `scores.json` and `scores.npz`.

    Args:
        folder: The run folder.

    Returns:
        The summary and the scores by detector and set, or None if either file is missing or damaged.

    Example:
        >>> from moon import read_scores
        >>> read_scores("runs/not-scored") is None
        True
    """
    folder = Path(folder)
    if (result := read_summary(folder)) is None:
        return None
    try:
        scores: Scores = {name: {} for name in result["detectors"]}
        with np.load(folder / "scores.npz") as file:
            for key in file.files:
                detector, _, name = key.partition("/")
                scores[detector][name] = file[key]
        return result, scores
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def write_scores(folder: Path, result: dict[str, Any], scores: Scores) -> None:
    """Write `scores.json` and `scores.npz`; scores of other detectors on the same images are kept.

    `result` and `scores` are extended by what is kept.
    """
    _keep_others(folder, result, scores)
    write_json(folder / "scores.json", result)
    flat = {f"{detector}/{name}": values for detector, by_set in scores.items() for name, values in by_set.items()}
    write_arrays(folder / "scores.npz", flat)


def _keep_others(folder: Path, result: dict[str, Any], scores: Scores) -> None:
    if (found := read_scores(folder)) is None or which_scored(found[0]) != which_scored(result):
        return
    old, old_scores = found
    for name in old["detectors"]:
        if name not in result["detectors"] and name not in result["left_out"]:
            result["detectors"][name], scores[name] = old["detectors"][name], old_scores[name]
            if name in old["search"]:
                result["search"][name] = old["search"][name]
    result["left_out"] = {k: v for k, v in old["left_out"].items() if k not in result["detectors"]} | result["left_out"]
