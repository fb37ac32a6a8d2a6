"""The numbers behind the pages as two files: `docs/results/runs.csv` and `docs/results/comparisons.csv`.

`runs.csv` has a line for each kept run, with the names of `networks.py` and the metrics of `Kept.values`;
`comparisons.csv` one for each comparison of each family of `sources.py`, where p is Holm's over the whole family.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan, nan
from typing import Any

from kept import Kept, value
from networks import COLLECTIONS
from paper_files import stale_lines
from sources import FAMILIES, test_family

from moon.files import write_text
from moon.results.tables import csv_text

DETECTORS = ("msp", "ebo", "ebo:unscaled", "knn", "fdbd", "fisher", "gen", "odin", "unknown")
PERCENT = ["accuracy", *(f"{detector} {group}" for detector in DETECTORS for group in ("near", "far"))]
PERCENT += [f"msp {name}" for name in ("cifar100-part", "tin", "tin-open")]
METRICS = dict.fromkeys(PERCENT, 2) | dict.fromkeys(("ece", "ece-scaled", "temperature"), 4)  # and decimal places
METRICS |= {f"p-unknown {part}": 4 for part in ("correct", "wrong", "near", "far")}


def write_csv_files(kept: Kept, check: bool) -> list[str]:
    """Write both files, or name those that are stale."""
    problems = []
    for name, rows in (("runs.csv", _runs(kept)), ("comparisons.csv", _comparisons(kept))):
        path = kept.results.parent / "docs" / "results" / name
        before, after = path.read_text(encoding="utf-8") if path.exists() else "", csv_text([*rows])
        if check:
            problems += [f"docs/results/{name}:{line}: {text}" for line, text in stale_lines(before, after)][:1]
        elif after != before:
            write_text(path, after)
            print(f"written: docs/results/{name}")
    return problems


def _runs(kept: Kept) -> Iterator[dict[str, Any]]:
    for collection in COLLECTIONS:
        for name, runs in sorted(kept.collection(collection).items()):
            topology, training = name.split("/", 1)
            for seed, run in runs.items():
                found = {metric: value(run, metric) for metric in METRICS}
                texts = {metric: "" if x is None else f"{x:.{METRICS[metric]}f}" for metric, x in found.items()}
                row = {"collection": collection, "topology": topology, "training": training, "seed": seed}
                yield row | {"version": run.result["software"]["moon"]} | texts


def _comparisons(kept: Kept) -> Iterator[dict[str, Any]]:
    for family in FAMILIES:
        for pair, found in test_family(kept, family).items():
            low, high = found.interval if len(found.a) > 2 else (nan, nan)
            numbers = {"difference": found.difference, "low": low, "high": high, "p": found.p}
            texts = {key: "" if isnan(x) else f"{x:.4f}" for key, x in numbers.items()}
            row = {"family": family, "network": pair.a, "minus": pair.b, "metric": pair.metric, "n": len(found.a)}
            yield row | texts
