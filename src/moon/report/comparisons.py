"""The section of the page that compares methods with paired tests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from math import isnan
from typing import Any

from moon.report.content import Table, make_table
from moon.report.sections import Methods, main_detector, value_at
from moon.results.collect import Run
from moon.results.compare import Pairs, compare, pair_by_seed
from moon.results.format import MISSING, interval_text, signed
from moon.score.files import which_scored

MOST_COMPARED = 6  # with more methods, each is compared with the first only


def comparisons_section(methods: Methods) -> Table | None:
    """Paired tests of methods that share seeds: all pairs, or, with many methods, each against the first."""
    detector = main_detector(methods)
    measures = {
        "accuracy %": (("known", "accuracy"), True, 100.0),
        "ECE": (("known", "ece"), False, 1.0),
        f"{detector} near AUROC %": (("detectors", detector, "near", "auroc"), True, 100.0),
        f"{detector} far AUROC %": (("detectors", detector, "far", "auroc"), True, 100.0),
    }
    first, *others = methods
    pairs = combinations(methods, 2) if len(methods) <= MOST_COMPARED else [(first, other) for other in others]
    names, family = [], []
    for against, method in pairs:
        comparable = _shared_runs(methods[method], methods[against])
        for measure, (path, higher_is_better, scale) in measures.items():
            a, b = pair_by_seed(
                *(
                    {run.recipe.seed: scale * value for run in runs if (value := value_at(run, *path)) is not None}
                    for runs in comparable
                )
            )
            if a:
                names.append((method, against, measure, 2 if scale == 100.0 else 4))
                family.append(Pairs(a, b, higher_is_better))
    rows = []
    for (method, against, measure, digits), found in zip(names, compare(family), strict=True):
        row = [method, against, measure, signed(found.difference, digits)]
        between = interval_text(*found.interval, digits, sign=True) if found.has_interval else MISSING
        p = MISSING if isnan(found.p) else f"{found.p:.3f}"
        rows.append([*row, between, p, found.no_claim or found.verdict])
    headings = ["method", "against", "measure", "difference", "95% interval", "p", "verdict"]
    return make_table(headings, rows, 3) if rows else None


def _shared_runs(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of two methods that share seed, benchmark and scored images."""

    def images(runs: Sequence[Run]) -> dict[int, Any]:
        return {run.recipe.seed: (run.recipe.benchmark, which_scored(run.summary)) for run in runs}

    images_a, images_b = images(a), images(b)
    shared = {seed for seed in images_a if seed in images_b and images_a[seed] == images_b[seed]}
    kept_a, kept_b = ([run for run in runs if run.recipe.seed in shared] for runs in (a, b))
    return kept_a, kept_b
