"""The sections of the page: each function prepares the data that a macro of `sections.html.j2` shows.

A method is a list of runs that differ only in their seed. Functions return None if a section has nothing to show.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from statistics import mean
from typing import Any

from moon.metrics import auroc_interval
from moon.recipe.labels import labels
from moon.report.content import Cell, Picture, make_table, number_cell, picture, png_uri
from moon.results import figures
from moon.results.choices import describe_choices
from moon.results.collect import Run
from moon.results.compare import MIN_SEEDS
from moon.results.format import MISSING, interval_text
from moon.results.tables import describe_images
from moon.results.temperatures import describe_temperatures
from moon.score.auto import AUTO
from moon.score.files import KNOWN, which_scored
from moon.suggest import counted, did_you_mean

Methods = Mapping[str, Sequence[Run]]

_SHOWN_FACTS = ("model_sha256", "software", "hardware", "seconds")  # of result.json


def value_at(run: Run, *path: str) -> float | None:
    """The number at this path of a run's summary, or None if there is none."""
    value: Any = run.summary
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) else None


def _values(runs: Iterable[Run], *path: str) -> list[float]:
    """The number at this path of each run's summary, where there is one."""
    return [value for run in runs if (value := value_at(run, *path)) is not None]


def has_one_benchmark(methods: Methods) -> bool:
    """Whether all runs have the same benchmark."""
    return len({run.recipe.benchmark for runs in methods.values() for run in runs}) == 1


def on_same_images(methods: Methods) -> bool:
    """Whether all runs were scored on the same images, so that their numbers can be ranked."""
    runs = [run for several in methods.values() for run in several]
    digests = {pair for run in runs for pair in run.summary.get("sha256", {}).items()}  # also of sets in no group
    return (
        has_one_benchmark(methods)
        and all(which_scored(run.summary) == which_scored(runs[0].summary) for run in runs)
        and len({name for name, _ in digests}) == len(digests)
    )


def _detectors(methods: Methods) -> list[str]:
    return list(dict.fromkeys(d for runs in methods.values() for run in runs for d in run.summary["detectors"]))


def choose_detector(methods: Methods, asked: str | None = None) -> tuple[str, str]:
    """Choose the detector that figures, comparisons and the table of methods show, and say why.

    It is the one asked for, or else the first with which all runs were scored: the choice of `auto` if all runs that
    recorded one agree, what `moon pack` uses, KNN, any other. If no detector has all runs, it is the one with most.
    """
    summaries = [run.summary for runs in methods.values() for run in runs]
    found = Counter(name for summary in summaries for name in summary["detectors"])
    if asked is not None and asked not in found:
        choices = f"{did_you_mean(asked, found)}; choose from: {', '.join(found)}"
        raise ValueError(f"none of the runs was scored with the detector '{asked}'{choices}")
    reasons = {"fisher": "what moon pack uses by default for most networks"}
    chosen = {summary[AUTO]["detector"] for summary in summaries if AUTO in summary}
    if len(chosen) == 1:
        reasons = dict.fromkeys(chosen, "chosen by auto") | reasons
    candidates = [name for name in dict.fromkeys([*reasons, "knn", *found]) if name in found]
    name = asked or max(candidates, key=found.__getitem__)  # the first one of equals
    lacking = len(summaries) - found[name]
    other = "with which most runs were scored" if lacking else f"as not all runs were scored with {next(iter(reasons))}"
    reason = "as asked for" if asked else reasons.get(name, other)
    return name, reason + (
        f"; {lacking} of {counted(len(summaries), 'run')} were not scored with it" if lacking else ""
    )


def lead(methods: Methods) -> dict[str, Any]:
    """The numbers of the summary at the top: counts, and the best combination of method and detector."""
    runs = [run for several in methods.values() for run in several]
    best, is_comparable = None, on_same_images(methods)
    for group in ("far", "near") if is_comparable else ():
        ranked = [
            (mean(found), _near(of_method, detector), mean(_values(of_method, "known", "accuracy")), method, detector)
            for method, of_method in methods.items()
            for detector in _detectors(methods)
            if (found := _values(of_method, "detectors", detector, group, "auroc"))
        ]
        if ranked:
            auroc, _, accuracy, method, detector = max(ranked, key=itemgetter(0, 1, 2))  # the first one of equals
            best = {"group": group, "auroc": auroc, "accuracy": accuracy, "method": method, "detector": detector}
            break
    return {
        "runs": len(runs),
        "methods": len(methods),
        "benchmarks": list(dict.fromkeys(run.recipe.benchmark for run in runs)),
        "best": best,
        "is_comparable": is_comparable,
        "has_few_runs": any(len(of_method) < MIN_SEEDS for of_method in methods.values()),
    }


def _near(runs: Iterable[Run], detector: str) -> float:
    """The mean AUROC on near unknown sets, by which detectors with equal AUROC on far ones are ranked."""
    found = _values(runs, "detectors", detector, "near", "auroc")
    return mean(found) if found else 0.0


def methods_section(methods: Methods, detector: str, reason: str) -> dict[str, Any]:
    """One row per method: accuracy, calibration, AUROC of the detector, cost."""
    rows = [
        [
            method,
            Cell(str(len(runs)), len(runs)),
            number_cell(_values(runs, "known", "accuracy")),
            number_cell(_values(runs, "known", "ece"), 4, 1.0),
            number_cell(_values(runs, "known_scaled", "ece"), 4, 1.0),
            number_cell(_values(runs, "detectors", detector, "near", "auroc")),
            number_cell(_values(runs, "detectors", detector, "far", "auroc")),
            number_cell([flops["inference"] for run in runs if (flops := run.result.get("flops"))], 1, 1e-6),
            number_cell([run.result["seconds"] for run in runs], 0, 1.0),
        ]
        for method, runs in methods.items()
    ]
    known = ["method", "runs", "accuracy %", "ECE", "ECE, scaled"]
    headings = [*known, f"{detector} near %", f"{detector} far %", "MFLOP", "seconds"]
    shown = [
        i for i in range(len(headings)) if any(not isinstance(row[i], Cell) or row[i].text != MISSING for row in rows)
    ]
    headings, rows = [headings[i] for i in shown], [[row[i] for i in shown] for row in rows]
    lower = [headings.index(name) for name in ("ECE", "ECE, scaled", "MFLOP", "seconds") if name in headings]
    mark_best = on_same_images(methods)
    return {
        "table": make_table(headings, rows, lower_is_better=lower, unranked=[1], mark_best=mark_best),
        "detector": detector,
        "reason": reason,
        "images": describe_images(run.summary for runs in methods.values() for run in runs).splitlines(),
    }


def detectors_section(methods: Methods) -> dict[str, Any]:
    """AUROC and FPR-95 of every detector and method on every unknown set."""
    summaries = [run.summary for runs in methods.values() for run in runs]
    scored = [of_detector for summary in summaries for of_detector in summary["detectors"].values()]
    sets = list(dict.fromkeys(name for of_detector in scored for name in of_detector["sets"]))
    groups = [group for group in ("near", "far") if any(group in of_detector for of_detector in scored)]
    headings = ["detector", "method", *sets, *(f"{group} mean" for group in groups)]
    tables = {}
    for title, metric, lower in (("AUROC %", "auroc", ()), ("FPR-95 %", "fpr95", range(2, len(headings)))):
        rows = []
        for detector in _detectors(methods):
            for method, runs in methods.items():
                if count := sum(detector in run.summary["detectors"] for run in runs):
                    label = method if count == len(runs) else f"{method} (n = {count})"
                    paths = [("sets", name, metric) for name in sets] + [(group, metric) for group in groups]
                    found = [_values(runs, "detectors", detector, *path) for path in paths]
                    rows.append([detector, label, *(_cell_of(values, count) for values in found)])
        tables[title] = make_table(headings, rows, 2, lower_is_better=lower, mark_best=on_same_images(methods))
    left_out = {f"{name}: {reason}" for summary in summaries for name, reason in summary["left_out"].items()}
    return {
        "tables": tables,
        "temperatures": describe_temperatures(summaries),
        "choices": describe_choices({method: [run.summary for run in runs] for method, runs in methods.items()}),
        "left_out": sorted(left_out),
    }


def _cell_of(values: Sequence[float], runs: int) -> Cell:
    """The cell of some runs, which says if not all of them have a value."""
    cell = number_cell(values)
    return replace(cell, text=f"{cell.text} (n = {len(values)})") if 0 < len(values) < runs else cell


def scores_section(methods: Methods, detector: str) -> dict[str, Any]:
    """Score histograms, ROC curves and intervals of the AUROC, for the first run of each method."""
    scores = {name: s for name, runs in methods.items() if (s := runs[0].scores) is not None and detector in s}
    if not scores:
        return {"pictures": [], "table": None}
    histogram_caption = (
        f"{detector} scores of the first run of each method, as percentiles among known images. When 95% of the known "
        "images are accepted, everything left of the line is rejected."
    )
    roc_caption = f"ROC curves of {detector}: accepted known images over accepted unknown images."
    pictures = [
        picture("histograms", figures.score_histograms(scores, detector), histogram_caption),
        picture("roc", figures.roc_curves(scores, detector), roc_caption),
    ]
    rows = []
    for method, by_detector in scores.items():
        known = by_detector[detector][KNOWN]
        for name, values in by_detector[detector].items():
            if name != KNOWN:
                low, high = auroc_interval(known, values)
                auroc = methods[method][0].summary["detectors"][detector]["sets"][name]["auroc"]
                rows.append([method, name, number_cell([auroc]), interval_text(100 * low, 100 * high, 1)])
    # The best number would be that of the easiest set.
    table = make_table(["method", "unknown set", f"{detector} AUROC %", "95% interval"], rows, 2, mark_best=False)
    return {"pictures": pictures, "table": table}


def calibration_section(methods: Methods) -> Picture | None:
    """Accuracy over confidence, for the first run of each method."""
    predictions = {name: found for name, runs in methods.items() if (found := runs[0].predictions) is not None}
    caption = (
        "Accuracy over confidence for the first run of each method. A well-calibrated network lies on the diagonal. "
        "Bars show the share of images."
    )
    return picture("calibration", figures.reliability_diagram(predictions), caption) if predictions else None


def sparsity_section(methods: Methods, detector: str) -> Picture | None:
    """AUROC over sparsity, if the runs have several sparsities."""
    runs = [run for several in methods.values() for run in several]
    if len({run.recipe.sparsity for run in runs}) < 2:
        return None
    without_sparsity = {run.recipe: replace(run.recipe, sparsity=0.0) for run in runs}
    names = labels(without_sparsity.values())  # what else distinguishes the methods
    points = []
    for run in runs:
        for group in ("near", "far"):
            if group in (scored := run.summary["detectors"].get(detector, {})):
                name = names[without_sparsity[run.recipe].name]
                points.append((name, 100 * run.recipe.sparsity, group, 100 * scored[group]["auroc"]))
    caption = f"{detector} AUROC over sparsity: one dot per run, and lines through the means."
    return picture("sparsity", figures.auroc_over_sparsity(points, detector), caption)


def training_section(methods: Methods) -> Picture | None:
    """What the training logs record, for the first run of each method."""
    logs = {name: runs[0].log for name, runs in methods.items() if runs[0].log}
    recorded = figures.logged_quantities(logs)
    parts = ["validation accuracy"] if "val_accuracy" in recorded else []
    parts += ["the weight w of the unknown-aware loss"] if "w" in recorded else []
    if any(key.startswith("p_unknown") for key in recorded):
        parts.append("the mean probability of the unknown output")
    if not parts:
        return None
    caption = f"Over the epochs of the first run of each method: {'; '.join(parts)}."
    return picture("training", figures.training_curves(logs), caption)


def masks_section(methods: Methods) -> Picture | None:
    """The density of each layer, for the first run of each sparse method."""
    densities = {name: found for name, runs in methods.items() if (found := runs[0].result.get("layer_density"))}
    caption = "Share of non-zero weights in each layer for the first run of each sparse method."
    return picture("masks", figures.layer_densities(densities), caption) if densities else None


def examples_section(methods: Methods) -> dict[str, dict[str, list[str]]] | None:
    """Images with extreme scores, as `data:` URIs, by method and description; for the first run of each method."""
    found: dict[str, dict[str, list[str]]] = {}
    for method, runs in methods.items():
        for key, images in (runs[0].examples or {}).items():
            side, _, name = key.partition("/")
            if name == KNOWN:
                what = {"right": "Known, correct, highest scores", "wrong": "Known, wrong, highest scores"}[side]
            else:
                what = {"right": f"{name}: lowest scores", "wrong": f"{name}: highest scores, mistaken for known"}[side]
            found.setdefault(method, {})[what] = [png_uri(image) for image in images]
    return found or None


def recipes_section(runs: Sequence[Run], left_out: Sequence[str]) -> dict[str, Any]:
    """Everything that defines each run, as JSON, and the runs that are left out."""
    described = []
    for run in runs:
        facts = run.recipe.to_json()
        facts |= {key: run.result[key] for key in _SHOWN_FACTS if key in run.result}
        described.append((run.recipe.name, json.dumps(facts, indent=1)))
    return {"runs": described, "left_out": list(left_out)}
