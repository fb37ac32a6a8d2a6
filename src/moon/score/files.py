"""The files that scoring writes into a run folder, and reading them. `writing` writes them.

scores.json   metrics per detector and unknown set, near and far means; temperatures; what was left out; how options
              were tuned; which detector `auto` chose, and why; digests of the model and of the arrays below. Written
              last.
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
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from moon.data import AnySet
from moon.data.archives import read_npz
from moon.errors import DamagedCheckpoint, DataError
from moon.recipe import Recipe
from moon.records import arrays_digest, read_record
from moon.run.folder import is_trained, load_result
from moon.run.identity import check_identity
from moon.run.images import BenchmarkImages
from moon.score.temperatures import current_names, upgraded

_log = logging.getLogger(__name__)

MIRRORED = "mirrored"  # the subfolder of scores of mirrored images
KNOWN = "known"  # the key of the known test set among the scored sets; no set can have this name
MODEL, ARRAYS, NET = "model_sha256", "arrays_sha256", "net"  # keys of scores.json; `net` if it was a checkpoint's
SCORES = "scores.npz"
USUAL_K = "usual_k"  # which neighbour KNN used if its name does not say it; not in older files, which used the 50th
Scores = dict[str, dict[str, NDArray]]  # detector -> set -> scores


def scores_folder(folder: Path, mirrored: bool) -> Path:
    """Where the scores of a run are."""
    return folder / MIRRORED if mirrored else folder


def scored_sets(images: BenchmarkImages) -> dict[str, AnySet]:
    """What is scored: the known test set and the unknown sets, by name."""
    return {KNOWN: images.splits["test"], **images.unknown}


def digests(images: BenchmarkImages) -> dict[str, str]:
    """The SHA-256 of every set that is scored, by its name."""
    return {name: data.digest() for name, data in scored_sets(images).items()}


def which_scored(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What must be equal for scores to be comparable.

    Digests of the known images and of the near and far sets, and precision and mirroring if they are not the default.
    """
    images = {key: summary.get(key) for key in ("sha256", "near", "far")}
    if images["sha256"] and "near" in summary:  # further sets may be kept from an earlier scoring
        compared = {KNOWN, *summary["near"], *summary["far"]}
        images["sha256"] = {name: digest for name, digest in images["sha256"].items() if name in compared}
    return images | {key: summary[key] for key in ("precision", "mirrored") if key in summary}


def load_summary(folder: Path | str, objective: str | None = None) -> dict[str, Any]:
    """Read `scores.json`, see `read_summary`.

    Raises:
        FileNotFoundError: If there is none.
        DamagedCheckpoint: If it is damaged, or belongs to another run or model.
    """
    return _read(Path(folder), objective)[0]


def read_summary(folder: Path | str, objective: str | None = None) -> dict[str, Any] | None:
    """Read `scores.json`.

    Files of older versions are read as the current version would have written them: if the objective normalises
    logits, their `ebo` at T = 1 is called `ebo:unscaled`, and so on.

    Args:
        folder: The run folder.
        objective: The objective of the run; None if the folder has its `recipe.json`.

    Returns:
        Its content, or None if it is missing or damaged; a damaged one is logged.

    Example:
        >>> from moon import read_summary
        >>> read_summary("runs/not-scored") is None
        True
    """
    try:
        return load_summary(folder, objective)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (DamagedCheckpoint, OSError) as error:
        warn_once(str(error))
        return None


@cache
def warn_once(message: str) -> None:
    """Log a warning, once."""
    _log.warning("%s", message)


def _read(folder: Path, objective: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The content of `scores.json`, and for each detector the name that the files have for it."""
    path = folder / "scores.json"
    try:
        result = read_record(path)
    except ValueError as error:
        raise DamagedCheckpoint(f"{path}: is damaged ({error}); score the run again") from error
    _check_model(path, result)
    names = {name: name for name in result["detectors"]}
    if "temperatures" in result:
        return result, names
    if objective is None and (objective := _objective(folder)) is None:
        _log.warning("%s: of an older version, without temperatures and recipe.json; all are taken as T = 1", folder)
        return result, names
    return upgraded(result, objective), current_names(names, objective)


def home_of(folder: Path) -> Path:
    """The run folder whose scores are in a folder."""
    return folder.parent if folder.name == MIRRORED else folder


def _check_model(path: Path, result: dict[str, Any]) -> None:
    """Raise `DamagedCheckpoint` if scores are those of another run or model than that of their folder.

    Scores in a folder of their own, and those of earlier versions, cannot be checked.
    """
    home = home_of(path.parent)
    if MODEL not in result or not is_trained(home):
        return
    check_identity(path, result, home)
    if result[MODEL] != load_result(home)["model_sha256"]:
        raise DamagedCheckpoint(f"{path}: are the scores of another model than that of this folder; score it again")


def _objective(folder: Path) -> str | None:
    """The objective of the run whose scores are in a folder, or None if it is not there."""
    try:
        return Recipe.load(home_of(folder) / "recipe.json").objective
    except (DamagedCheckpoint, OSError, ValueError):
        return None


def read_scores(folder: Path | str, objective: str | None = None) -> tuple[dict[str, Any], Scores] | None:
    """Read `scores.json` and `scores.npz`.

    Args:
        folder: The run folder.
        objective: As for `read_summary`.

    Returns:
        The summary and the scores by detector and set, or None if either file is missing or damaged, which is logged.

    Example:
        >>> from moon import read_scores
        >>> read_scores("runs/not-scored") is None
        True
    """
    folder = Path(folder)
    if (result := read_summary(folder, objective)) is None:
        return None
    scores = verified_scores(folder, objective)
    if missing := [name for name in result["detectors"] if name not in scores]:
        if (folder / SCORES).exists() or ARRAYS in result:  # kept folders of earlier versions may have none
            warn_once(f"{folder / SCORES}: lacks the scores of {missing[0]}, or has others; score the run again")
        return None
    return result, scores


def verified_scores(folder: Path, objective: str | None) -> Scores:
    """The scores of those detectors in `scores.json` whose arrays are intact."""
    result, names = _read(folder, objective)
    stored: Scores = {}
    for key, array in (_load_arrays(folder / SCORES) or {}).items():
        detector, _, name = key.partition("/")
        stored.setdefault(detector, {})[name] = array
    digests = result.get(ARRAYS)
    return {
        new: stored[old]
        for new, old in names.items()
        if old in stored and (digests is None or digests.get(f"{SCORES}/{old}") == arrays_digest(stored[old]))
    }


def read_arrays(folder: Path, name: str) -> dict[str, NDArray] | None:
    """Read `known.npz` or `examples.npz`.

    Args:
        folder: The run folder.
        name: The name of the file.

    Returns:
        Its arrays, or None if it is missing or damaged; a damaged one is logged.
    """
    arrays, digests = _load_arrays(folder / name), (read_summary(folder) or {}).get(ARRAYS)
    if digests is not None and digests.get(name) != (None if arrays is None else arrays_digest(arrays)):
        warn_once(f"{folder / name}: is not the file that was written with scores.json; score the run again")
        return None
    return arrays


def _load_arrays(path: Path) -> dict[str, NDArray] | None:
    """The arrays of an .npz file, or None if it is missing or damaged, which is logged."""
    if not path.exists():
        return None
    try:
        return read_npz(path)[0]
    except DataError as error:
        warn_once(f"{error}; score the run again")
        return None
