"""Write scores into a folder: those of other detectors and other sets are kept, those of other models refused."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data.classes import enumerated
from moon.files import write_arrays
from moon.recipe import table
from moon.recipe.variants import Variant
from moon.records import arrays_digest, write_record
from moon.score.files import (
    ARRAYS,
    KNOWN,
    MODEL,
    NET,
    SCORES,
    USUAL_K,
    Scores,
    home_of,
    read_summary,
    scores_folder,
    verified_scores,
    warn_once,
)
from moon.score.tables import group_means

_log = logging.getLogger(__name__)


def check_same_model(home: Path, objective: str, about: Mapping[str, Any]) -> None:
    """Check that a folder has no scores, mirrored or not, of another model.

    Scores of earlier versions do not say of which model they are, and are not checked.

    Args:
        home: The folder.
        objective: The objective of the run.
        about: What `scores.json` will say about the model.

    Raises:
        ValueError: If it has.
    """
    for mirrored in (False, True):
        old = read_summary(scores_folder(home, mirrored), objective)
        if old is not None and MODEL in old and any(old.get(key) != about.get(key) for key in (MODEL, NET)):
            raise ValueError(f"{home}: contains the scores of another model; choose another folder (out)")


def write_scores(
    folder: Path, result: dict[str, Any], scores: Scores, objective: str, others: Mapping[str, Mapping[str, NDArray]]
) -> None:
    """Write `scores.npz`, other arrays, and `scores.json`; scores of other detectors and other unknown sets are kept.

    Only what was scored with the same known images and precision is kept, and nothing that a detector was tuned on.
    Near and far remain the groups that were just scored: a kept set is in no mean, unless it belongs to a group.

    `result` and `scores` are extended by what is kept. Arrays are written first: if the process is killed in between,
    the old `scores.json` still finds its scores in the new file.

    Args:
        folder: Where to write.
        result: The content of `scores.json`.
        scores: The content of `scores.npz`.
        objective: The objective of the run.
        others: Arrays by the names of their files.

    Raises:
        ValueError: If the folder has the scores of another model.
    """
    check_same_model(home_of(folder), objective, result)
    _keep_others(folder, result, scores, objective)
    flat = {f"{detector}/{name}": values for detector, by_set in scores.items() for name, values in by_set.items()}
    for name, arrays in {SCORES: flat, **others}.items():
        write_arrays(folder / name, arrays)
    result[ARRAYS] = {f"{SCORES}/{name}": arrays_digest(by_set) for name, by_set in scores.items()}
    result[ARRAYS] |= {name: arrays_digest(arrays) for name, arrays in others.items()}
    write_record(folder / "scores.json", result)


def _keep_others(folder: Path, result: dict[str, Any], scores: Scores, objective: str) -> None:
    if (old := read_summary(folder, objective)) is None:
        if (folder / SCORES).exists() and not (folder / "scores.json").exists():
            warn_once(f"{folder}: there are scores without scores.json; those of other detectors are dropped")
        return
    if "auto" in old and old.get(MODEL) == result.get(MODEL):
        result.setdefault("auto", old["auto"])  # chosen on validation and tuning images, not on those that are scored
    if untuned := [name for name in old.get("search", ()) if name in result["detectors"].keys() - result["search"]]:
        _log.warning(
            "%s: the scores of %s with tuned options are replaced by those with the default ones; to tune again, name "
            "the sets (--tune-on)",
            folder,
            enumerated(untuned),
        )
    digests, new_digests = old.get("sha256") or {}, result["sha256"]
    if (old.get("precision"), digests.get(KNOWN)) != (result.get("precision"), new_digests[KNOWN]):
        if dropped := [name for name in old["detectors"] if name not in result["detectors"]]:
            names = enumerated(dropped)
            _log.warning("%s: the scores of %s are of other known images or another precision; dropped", folder, names)
        return
    old_scores = verified_scores(folder, objective)
    is_other_k = old.get(USUAL_K, 50) != result.get(USUAL_K, 50)
    tuned_on = {
        each for record in (result.get("auto", {}), *result["search"].values()) for each in record.get("on", ())
    }
    lost: dict[str, list[str]] = {}
    for name, metrics in old["detectors"].items():
        missing = [each for each in metrics["sets"] if each not in scores.get(name, ()) and each not in tuned_on]
        if name in result["left_out"] or not missing:
            continue
        is_new = name not in scores
        if is_new and is_other_k and name.partition(":")[0] in table("detector") and Variant.of(name).uses_usual_k:
            warn_once(
                f"{folder}: the scores of {name} are of an older version, which used the 50th neighbour in sets of any "
                "size, and are dropped; score the run with it again"
            )
            continue
        if name not in old_scores:
            again = "score the run with it again"
            warn_once(f"{folder}: the scores of {name} are missing or damaged and are dropped; {again}")
            continue
        by_set = scores.get(name, {KNOWN: old_scores[name][KNOWN]})
        kept = [each for each in missing if digests.get(each) == new_digests.get(each, digests.get(each, ""))]
        if not _are_equal(old_scores[name][KNOWN], by_set[KNOWN]):  # other options of the same detector
            kept = []
        for each in [each for each in missing if each not in kept]:
            lost.setdefault(each, []).append(name)
        if not kept:
            continue
        scores[name] = by_set | {each: old_scores[name][each] for each in kept}
        sets = result["detectors"].get(name, {"sets": {}})["sets"] | {each: metrics["sets"][each] for each in kept}
        result["detectors"][name] = {"sets": sets, **group_means(sets, result)}
        for record in ("images", "sha256"):
            result[record] |= {each: old[record][each] for each in kept}
        for record in ("search", "temperatures"):
            if is_new and name in old.get(record, ()):
                result[record][name] = old[record][name]
    for each, names in lost.items():
        _log.warning(
            "%s: the scores of %s on %s are of other images or options and are dropped", folder, enumerated(names), each
        )
    still_out = {k: v for k, v in old.get("left_out", {}).items() if k not in result["detectors"]}
    result["left_out"] = still_out | result["left_out"]


def _are_equal(a: NDArray, b: NDArray) -> bool:
    """Whether scores of the same images are equal, but for what another machine or batch size rounds differently."""
    return a.shape == b.shape and float(np.abs(a - b).max()) <= 1e-4 * float(np.ptp(a))
