"""The numbers behind the pages as two files: `docs/results/runs.csv` and `docs/results/comparisons.csv`.

`runs.csv` has a line for each kept run, with the names of `networks.py` and the metrics of `Kept.values`;
`comparisons.csv` one for each comparison of each family of `sources.py`, where p is Holm's over the whole family.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from kept import Kept, value
from networks import COLLECTIONS
from paper_files import stale_lines
from sources import FAMILIES, test_family

from moon.files import write_text

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
        before, after = path.read_text(encoding="utf-8") if path.exists() else "", _text(rows)
        if check:
            problems += [f"docs/results/{name}:{line}: {text}" for line, text in stale_lines(before, after)][:1]
        elif after != before:
            write_text(path, after)
            print(f"written: docs/results/{name}")
    return problems


def _text(rows: Iterable[Sequence[str]]) -> str:
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(rows)
    return file.getvalue()


def _runs(kept: Kept) -> Iterator[list[str]]:
    yield ["collection", "topology", "training", "seed", "version", *METRICS]
    for collection in COLLECTIONS:
        for name, runs in sorted(kept.collection(collection).items()):
            for seed, run in runs.items():
                found = {metric: value(run, metric) for metric in METRICS}
                texts = ["" if x is None else f"{x:.{METRICS[metric]}f}" for metric, x in found.items()]
                yield [collection, *name.split("/", 1), str(seed), run.result["software"]["moon"], *texts]


def _comparisons(kept: Kept) -> Iterator[list[str]]:
    yield ["family", "network", "minus", "metric", "n", "difference", "low", "high", "p"]
    for family in FAMILIES:
        for pair, found in test_family(kept, family).items():
            several = len(found.a) > 2
            numbers = (found.difference, *found.interval, found.p) if several else (found.difference,)
            texts = [f"{x:.4f}" for x in numbers] + [""] * (4 - len(numbers))
            yield [family, pair.a, pair.b, pair.metric, str(len(found.a)), *texts]
