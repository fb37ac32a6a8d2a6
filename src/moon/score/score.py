"""Scores a finished run: every detector on every unknown set, from one reading of each set.

scores.json   metrics a detector and set, near and far means; what was left out, and the search of options if any
scores.npz    the scores themselves, `<detector>/<set>`, for pictures and further statistics
known.npz     of each known test input: label, prediction, confidence, p_unknown, first principal component
evidence/     what the model says about each set, if it was asked to be kept
examples.npz  a few images of each set that MSP, or else the first detector, ranked best and worst
mirrored/     the same four files where each image was read mirrored, too: tables and pages are of the others
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray

from moon.data import AnySet
from moon.detect import DETECTORS, Detector, TemperatureScaling
from moon.evidence import Evidence
from moon.files import write_atomic, write_json
from moon.metrics import aupr, auroc, fpr_at_tpr
from moon.recipe import build
from moon.recipe.recipe import Recipe
from moon.run.images import KNOWN, Bench, thumbnails
from moon.run.train import check_data, known_metrics, load_model, load_result, p_unknown
from moon.score.cache import Readings
from moon.score.tune import search
from moon.training import locked

EXAMPLES = 6  # images of each kind
Scores = dict[str, dict[str, NDArray]]  # detector -> set -> scores


def unknown_metrics(known: NDArray, unknown: NDArray) -> dict[str, float]:
    """All metrics of one detector on one unknown set."""
    return {
        "auroc": auroc(known, unknown),
        "fpr95": fpr_at_tpr(known, unknown),
        "fpr95_unknown_positive": fpr_at_tpr(known, unknown, positive="unknown"),
        "aupr_in": aupr(known, unknown),
        "aupr_out": aupr(known, unknown, positive="unknown"),
    }


def mean_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """The unweighted mean over sets, as OpenOOD takes near and far."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def score_run(
    folder: Path,
    bench: Bench,
    detectors: Iterable[str] | None = None,
    *,
    device: torch.device | str = "cpu",
    skip_unfit: bool = False,
    keep_evidence: bool = False,
    precision: str = "float32",
    mirrored: bool = False,
    track: Callable[[list[str], str], Iterable[str]] = lambda items, _: items,
) -> tuple[dict[str, Any], Scores]:
    """Score the run and write the result into its folder; `detectors=None` is all that fit the model and data.

    With `skip_unfit` those that were named and do not fit are left out, too. With `keep_evidence` what the model says
    about each set stays in the folder, and the next scoring needs no forward pass. `precision` and `mirrored` say how
    images are read (`Bench.read`).

    Where the bench has validation unknowns, options of detectors are chosen by them first, and the search is recorded.
    """
    recipe = Recipe.load(folder / "recipe.json")
    if recipe.benchmark != bench.row.name:
        raise ValueError(f"{folder}: was trained on {recipe.benchmark}, not {bench.row.name}")
    if not bench.unknown:
        if bench.validation or recipe.outliers:
            raise ValueError("no unknown set is left to score: all were trained or tuned with; name others with --far")
        raise ValueError(
            f"no unknown set was found for {bench.row.name} (looked for {', '.join(bench.missing) or 'none'}); "
            "name some under the data root with --near and --far"
        )
    check_data(folder, bench)
    place = place_of(folder, mirrored)
    if precision != "float32" and (old := read_summary(place)) is not None and "precision" not in old:
        raise ValueError(
            f"{place}: has scores of a float32 reading, which is the better one; leave out --precision, or score a "
            "copy of the run's folder"
        )
    model = load_model(folder, bench.row, device)
    if detectors is not None and not (detectors := list(detectors)):
        raise ValueError("no detector was named")
    chosen = {name: build.detector(name, bench.row) for name in (DETECTORS if detectors is None else detectors)}
    sets = {KNOWN: bench.known["test"], **bench.unknown}

    # One reading of each set serves every detector that changes no input.
    seen = Readings(bench, model, load_result(folder)["model_sha256"], folder, keep_evidence, precision, mirrored)

    def evidence(detector: Detector, name: str, data: AnySet) -> Evidence:
        if detector.perturbs:
            return bench.read(model, data, detector.perturb, precision, mirrored)
        return seen.of(name, data)

    def fitted(detector: Detector) -> Detector:
        splits = [{"train": "train", "validation": "val"}[name] for name in detector.fits_on_splits]
        if splits:
            detector.fit(*(seen.of(f"fit/{split}", bench.known[split]) for split in splits))  # no set can be called so
        return detector

    for name in track(list(sets), "reading"):
        seen.of(name, sets[name])
    scaling = TemperatureScaling().fit(seen.of("fit/val", bench.known["val"]))
    scores: Scores = {}
    used: dict[str, Detector] = {}
    left_out: dict[str, str] = {}  # of all detectors; one that was asked for by name must work
    searches: dict[str, Any] = {}
    for name in track(list(chosen), "scoring"):
        try:
            if bench.validation and chosen[name].grid:
                detector, searches[name] = search(name, bench, fitted, evidence)
            else:
                detector = fitted(chosen[name])
            done = [d for d, part in detector.parts.items() if d in used and used[d].options() == part.options()]
            by_set = {}
            for key, data in sets.items():
                given = {d: torch.as_tensor(scores[d][key], device=device) for d in done}
                by_set[key] = detector.score_given(evidence(detector, key, data), given).cpu().numpy()
            scores[name], used[name] = by_set, detector
        except ValueError as error:
            if detectors is not None and not skip_unfit:
                raise
            left_out[name] = str(error)

    result = {
        "benchmark": bench.row.name,
        "lists": bench.row.lists or "the sets as they are under the root",
        "images": {name: len(data.labels) for name, data in sets.items()},
        "sha256": bench.digests(),  # of the images as the network sees them
        "near": [name for name in bench.row.near if name in sets],
        "far": [name for name in bench.row.far if name in sets],
        "missing": list(bench.missing),
        "left_out": left_out,
        "search": searches,
        "known": known_metrics(seen[KNOWN]),
        "known_scaled": known_metrics(scaling(seen[KNOWN])) | {"temperature": scaling.temperature},
        "p_unknown": {name: p_unknown(seen[KNOWN], seen[name]) for name in bench.unknown if seen[KNOWN].is_open},
        **({} if precision == "float32" else {"precision": precision}),
        **({"mirrored": True} if mirrored else {}),
        "detectors": {name: _table(by_set, bench.row.near, bench.row.far) for name, by_set in scores.items()},
    }
    with locked(folder):
        place.mkdir(exist_ok=True)
        _keep_others(place, result, scores)
        write_json(place / "scores.json", result)
        flat = {f"{name}/{key}": values for name, by_set in scores.items() for key, values in by_set.items()}
        _write_arrays(place / "scores.npz", flat)
        _write_arrays(place / "known.npz", about_known(seen[KNOWN]))
        if scores:
            by = "msp" if "msp" in scores else next(iter(scores))
            _write_arrays(place / "examples.npz", examples(sets, scores[by], seen[KNOWN]))
    return result, scores


def place_of(folder: Path, mirrored: bool) -> Path:
    """Where the scores of a run are."""
    return folder / "mirrored" if mirrored else folder


def about_known(known: Evidence) -> dict[str, NDArray]:
    """What pictures of known inputs need, a value an input."""
    labels = known.labels
    assert labels is not None
    centred = known.features - known.features.mean(0)
    component = torch.linalg.eigh(centred.T @ centred)[1][:, -1]  # of the largest eigenvalue
    component = component * component[component.abs().argmax()].sign()  # a direction has no sign of its own
    values = {
        "labels": labels,
        "prediction": known.prediction,
        "confidence": known.confidence.float(),
        "p_unknown": known.unknown.float(),
        "first_component": (centred @ component).float(),
    }
    return {name: value.cpu().numpy() for name, value in values.items()}


def examples(sets: Mapping[str, AnySet], by_set: Mapping[str, NDArray], known: Evidence) -> dict[str, NDArray]:
    """Images that were ranked most right and most wrong, `<right or wrong>/<set>`, the most extreme first.

    Of the known set: the most confident right and wrong predictions. Of an unknown set: the least and the most known.
    """
    correct = (known.prediction == known.labels).cpu().numpy()
    found = {}
    for name, data in sets.items():
        order = np.argsort(by_set[name], kind="stable")
        chosen = {"right": order, "wrong": order[::-1]}
        if name == KNOWN:
            chosen = {"right": order[::-1][correct[order[::-1]]], "wrong": order[::-1][~correct[order[::-1]]]}
        for side, indices in chosen.items():
            if len(indices):
                found[f"{side}/{name}"] = thumbnails(data, indices[:EXAMPLES])
    return found


def _keep_others(folder: Path, result: dict[str, Any], scores: Scores) -> None:
    """Keep what other detectors were found to score on the same images."""
    if (found := read_scores(folder)) is None or which_scored(found[0]) != which_scored(result):
        return
    old, old_scores = found
    for name in old["detectors"]:
        if name not in result["detectors"] and name not in result["left_out"]:
            result["detectors"][name], scores[name] = old["detectors"][name], old_scores[name]
            if name in old["search"]:
                result["search"][name] = old["search"][name]
    result["left_out"] = {k: v for k, v in old["left_out"].items() if k not in result["detectors"]} | result["left_out"]


def which_scored(summary: Mapping[str, Any]) -> dict[str, Any]:
    """What tells the scores of a run from others: digests of the images, which sets are near and far, and how images
    were read where it is not as usual."""
    images = {key: summary.get(key) for key in ("sha256", "near", "far")}
    return images | {key: summary[key] for key in ("precision", "mirrored") if key in summary}


def read_summary(folder: Path) -> dict[str, Any] | None:
    """scores.json, or None where there is none whole."""
    try:
        result = json.loads((folder / "scores.json").read_text())
        result["detectors"]
        return result
    except (OSError, ValueError, KeyError):
        return None


def read_scores(folder: Path) -> tuple[dict[str, Any], Scores] | None:
    """The summary and the scores themselves, or None where they are not there whole."""
    if (result := read_summary(folder)) is None:
        return None
    try:
        scores: Scores = {name: {} for name in result["detectors"]}
        with np.load(folder / "scores.npz") as file:
            for key in file.files:
                name, _, of = key.partition("/")
                scores[name][of] = file[key]
        return result, scores
    except (OSError, ValueError, KeyError, BadZipFile):
        return None


def _table(by_set: dict[str, NDArray], near: tuple[str, ...], far: tuple[str, ...]) -> dict[str, Any]:
    metrics = {name: unknown_metrics(by_set[KNOWN], values) for name, values in by_set.items() if name != KNOWN}
    table: dict[str, Any] = {"sets": metrics}
    for group, members in (("near", near), ("far", far)):
        rows = [metrics[name] for name in members if name in metrics]
        if rows:
            table[group] = mean_metrics(rows)
    return table


def _write_arrays(path: Path, arrays: dict[str, NDArray]) -> None:
    def save(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, **arrays)  # pyright: ignore[reportArgumentType]

    write_atomic(path, save)
