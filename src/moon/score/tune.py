"""Chooses a detector's options by validation unknowns, and records what was tried. Test unknowns play no part."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from moon.data import AnySet
from moon.detect import Detector
from moon.evidence import Evidence
from moon.metrics import auroc
from moon.recipe import build
from moon.run.images import Bench


def search(
    name: str,
    bench: Bench,
    fitted: Callable[[Detector], Detector],
    evidence: Callable[[Detector, str, AnySet], Evidence],
) -> tuple[Detector, dict[str, Any]]:
    """The detector, fitted, with the best options of its grid, and the record: every candidate with its mean AUROC.

    The known side is the known validation set. The defaults are the first candidate and win a tie; a candidate that
    the data cannot serve (more neighbours than inputs) is recorded with the reason.
    """
    default = build.detector(name, bench.row)
    candidates = [{key: default.options()[key] for key in default.grid}]
    candidates += [dict(zip(default.grid, values, strict=True)) for values in product(*default.grid.values())]
    tried: list[dict[str, Any]] = []
    best: tuple[float, Detector, dict[str, Any]] | None = None
    for options in (c for i, c in enumerate(candidates) if c not in candidates[:i]):
        entry: dict[str, Any] = {"options": options}
        tried.append(entry)
        try:
            detector = fitted(build.detector(name, bench.row, **options))
            known = detector.score(evidence(detector, "fit/val", bench.known["val"])).cpu().numpy()
            entry["auroc"] = {
                key: auroc(known, detector.score(evidence(detector, f"tune/{key}", data)).cpu().numpy())
                for key, data in bench.validation.items()
            }
        except ValueError as error:
            entry["refused"] = str(error)
            continue
        mean = float(np.mean(list(entry["auroc"].values())))
        if best is None or mean > best[0]:
            best = mean, detector, options
    if best is None:
        raise ValueError(f"no candidate of '{name}' could be used: {tried[0]['refused']}")
    images = {key: len(data.labels) for key, data in bench.validation.items()}
    return best[1], {"on": images, "tried": tried, "chosen": best[2]}
