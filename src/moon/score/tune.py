"""Tune a detector's options on unknown images that are not scored, and record every candidate."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from torch import Tensor

from moon.data import AnySet
from moon.detect import Detector
from moon.evidence import Evidence
from moon.metrics import auroc
from moon.recipe import Recipe, build
from moon.run.images import BenchmarkImages


def tune(
    name: str,
    recipe: Recipe,
    images: BenchmarkImages,
    fitted: Callable[[Detector], Detector],
    evidence: Callable[[Detector, str, AnySet], Evidence],
    among: Tensor,
) -> tuple[Detector, dict[str, Any]]:
    """Return the fitted detector whose options have the best mean AUROC, and the record of all candidates.

    Known images are the validation images with the numbers `among`, unknown ones the `tuning` sets. The default options
    are the first candidate and win ties. The record has the AUROC of each per set, or why it could not be used.
    """
    default = build.detector(name, recipe, images.benchmark)
    candidates = [{key: default.options()[key] for key in default.grid}]
    candidates += [dict(zip(default.grid, values, strict=True)) for values in product(*default.grid.values())]
    tried: list[dict[str, Any]] = []
    best: tuple[float, Detector, dict[str, Any]] | None = None
    for options in (c for i, c in enumerate(candidates) if c not in candidates[:i]):
        entry: dict[str, Any] = {"options": options}
        tried.append(entry)
        try:
            detector = fitted(build.detector(name, recipe, images.benchmark, **options))
            validation = evidence(detector, "fit/val", images.splits["val"]).take(among)
            known = detector.score(validation).cpu().numpy()
            entry["auroc"] = {
                key: auroc(known, detector.score(evidence(detector, f"tune/{key}", data)).cpu().numpy())
                for key, data in images.tuning.items()
            }
        except ValueError as error:
            entry["refused"] = str(error)
            continue
        mean = float(np.mean(list(entry["auroc"].values())))
        if best is None or mean > best[0]:
            best = mean, detector, options
    if best is None:
        raise ValueError(f"no candidate of '{name}' could be used: {tried[0]['refused']}")
    counts = {key: len(data.labels) for key, data in images.tuning.items()}
    return best[1], {"on": counts, "tried": tried, "chosen": best[2]}
