"""The section of the page that compares methods with paired tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from moon.recipe.labels import differences
from moon.report.content import make_table
from moon.report.sections import Methods, value_at
from moon.results.collect import Run
from moon.results.compare import Pairs, compare, pair_by_seed
from moon.results.format import MISSING, interval_text, signed
from moon.score.files import which_scored
from moon.suggest import did_you_mean


def comparisons_section(methods: Methods, detector: str, against: str | None = None) -> dict[str, Any] | None:
    """Paired tests of methods that share seeds: of those that differ in one setting, or of all against a named one."""
    if against is not None and against not in methods:
        choices = f"{did_you_mean(against, methods)}; choose from: {', '.join(methods)}"
        raise ValueError(f"there is no method '{against}' to compare with{choices}")
    measures = {
        "accuracy %": (("known", "accuracy"), True, 100.0),
        "ECE": (("known", "ece"), False, 1.0),
        f"{detector} near AUROC %": (("detectors", detector, "near", "auroc"), True, 100.0),
        f"{detector} far AUROC %": (("detectors", detector, "far", "auroc"), True, 100.0),
    }
    names, family = [], []
    for (method, other), settings in _pairs(methods, against).items():
        comparable = _shared_runs(methods[method], methods[other])
        for measure, (path, higher_is_better, scale) in measures.items():
            a, b = pair_by_seed(
                *(
                    {run.recipe.seed: scale * value for run in runs if (value := value_at(run, *path)) is not None}
                    for runs in comparable
                )
            )
            if a:
                names.append(([method, other, ", ".join(settings), measure], 2 if scale == 100.0 else 4))
                family.append(Pairs(a, b, higher_is_better))
    rows = []
    for (row, digits), found in zip(names, compare(family), strict=True):
        between = interval_text(*found.interval, digits, sign=True) if found.has_interval else MISSING
        p = MISSING if isnan(found.p) else f"{found.p:.3f}"
        rows.append([*row, signed(found.difference, digits), between, p, found.no_claim or found.verdict])
    headings = ["method", "against", "differ in", "measure", "difference", "95% interval", "p", "verdict"]
    table = make_table(headings, rows, 4) if rows else None
    return {"table": table, "against": against} if len(methods) > 1 else None


def _pairs(methods: Methods, against: str | None) -> Mapping[tuple[str, str], list[str]]:
    """The methods to compare, and the settings in which they differ."""
    found = differences({name: runs[0].recipe for name, runs in methods.items()})
    if against is None:
        return {pair: settings for pair, settings in found.items() if len(settings) == 1}
    return {
        (next(name for name in pair if name != against), against): settings
        for pair, settings in found.items()
        if against in pair
    }


def _shared_runs(a: Sequence[Run], b: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """The runs of two methods that share seed, benchmark and scored images."""

    def images(runs: Sequence[Run]) -> dict[int, Any]:
        return {run.recipe.seed: (run.recipe.benchmark, which_scored(run.summary)) for run in runs}

    images_a, images_b = images(a), images(b)
    shared = {seed for seed in images_a if seed in images_b and images_a[seed] == images_b[seed]}
    kept_a, kept_b = ([run for run in runs if run.recipe.seed in shared] for runs in (a, b))
    return kept_a, kept_b
