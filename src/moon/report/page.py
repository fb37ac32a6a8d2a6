"""A page about runs that a person would like to read: one HTML file that loads nothing from outside."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from html import escape
from importlib.resources import files
from itertools import combinations
from math import nan
from pathlib import Path
from statistics import mean
from string import Template
from typing import Any

from moon.files import write_text
from moon.metrics import auroc_interval, holm, interval, paired_test, verdict
from moon.recipe.expand import labels
from moon.recipe.recipe import Recipe
from moon.report.elements import cell, figure, png, table
from moon.results import figures
from moon.results.collect import Run, collect
from moon.results.tables import which_images
from moon.score.score import KNOWN, which_scored

PICTURED = 6  # methods, at most: more would not be told apart in a picture


def write_report(paths: Iterable[Path], target: Path, title: str = "") -> list[Run]:
    """Write the page; the runs it is about are given back."""
    runs, left_out = collect(paths)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, page(runs, left_out, title))
    return runs


def page(runs: Sequence[Run], left_out: Sequence[str] = (), title: str = "") -> str:
    """The whole page as text."""
    names = labels([run.recipe for run in runs])
    methods: dict[str, list[Run]] = {}
    for run in runs:
        methods.setdefault(names[run.recipe.name], []).append(run)
    title = title or f"{', '.join(dict.fromkeys(run.recipe.benchmark for run in runs))}: known and unknown"
    pictured = dict(list(methods.items())[:PICTURED])
    parts = {
        "Methods": _methods(methods),
        "Detectors": _detectors(methods),
        "Comparisons": _comparisons(methods),
        "Scores": _scores(pictured),
        "Calibration": _calibration(pictured),
        "Sparsity": _sparsity(methods),
        "Training": _training(pictured),
        "Masks": _masks(pictured),
        "Examples": _examples(pictured),
        "Recipes": _recipes(runs, left_out),
    }
    if len(methods) > PICTURED:
        parts["Scores"] = f"<p>Pictures are of the first {PICTURED} methods.</p>{parts['Scores']}"
    parts = {heading: text for heading, text in parts.items() if text}
    links = "".join(f'<a href="#{heading.lower()}">{heading}</a>' for heading in parts)
    body = [f"<h1>{escape(title)}</h1>", f'<p class="lead">{_sentence(methods)}</p>', f"<nav>{links}</nav>"]
    body += [f'<section id="{h.lower()}"><h2>{h}</h2>\n{text}</section>' for h, text in parts.items()]
    template = Template((files("moon.report") / "report.html").read_text())
    return template.substitute(title=escape(title), body="\n".join(body))


Methods = Mapping[str, Sequence[Run]]


def _values(runs: Iterable[Run], *path: str) -> list[float]:
    """One value a run, where it has one."""
    found = []
    for run in runs:
        value: Any = run.summary
        for key in path:
            value = value.get(key, {}) if isinstance(value, Mapping) else {}
        if isinstance(value, int | float):
            found.append(float(value))
    return found


def _is_one(methods: Methods) -> bool:
    """Whether all is of one benchmark, so that a best one can be named."""
    return len({run.recipe.benchmark for runs in methods.values() for run in runs}) == 1


def _all_detectors(methods: Methods) -> list[str]:
    return list(dict.fromkeys(d for runs in methods.values() for run in runs for d in run.summary["detectors"]))


def _first(methods: Methods) -> str:
    """The detector that pictures are of: MSP where it was asked, as in the paper."""
    found = _all_detectors(methods)
    return "msp" if "msp" in found else found[0]


def _sentence(methods: Methods) -> str:
    """The summary of the page."""
    runs = [run for several in methods.values() for run in several]
    names = " and ".join(dict.fromkeys(run.recipe.benchmark for run in runs))
    text = f"{_counted(len(runs), 'run')} of {_counted(len(methods), 'method')} on {escape(names)}. "
    for group in ("far", "near"):
        ranked = [
            (mean(found), mean(_values(of, "known", "accuracy")), method, detector)
            for method, of in methods.items()
            for detector in _all_detectors(methods)
            if (found := _values(of, "detectors", detector, group, "auroc"))
        ]
        if ranked:
            best, accuracy, method, detector = max(ranked)
            text += (
                f"{group.capitalize()} unknown images are told apart best by <b>{escape(detector)}</b> on "
                f"<b>{escape(method)}</b>, AUROC {best:.1%}, at an accuracy of {accuracy:.1%} on known ones. "
            )
            break
    if min(len(of) for of in methods.values()) < 2:
        text += "Some method has one run only: no claim is made about which is better."
    return text


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _methods(methods: Methods) -> str:
    detector = _first(methods)
    rows = []
    for method, runs in methods.items():
        row: list[Any] = [method, (str(len(runs)), float(len(runs)))]
        row += [
            cell(_values(runs, "known", "accuracy")),
            cell(_values(runs, "known", "ece"), 4, 1.0),
            cell(_values(runs, "known_scaled", "ece"), 4, 1.0),
            cell(_values(runs, "detectors", detector, "near", "auroc")),
            cell(_values(runs, "detectors", detector, "far", "auroc")),
            cell([f["inference"] for run in runs if (f := run.result.get("flops"))], 1, 1e-6),
            cell([run.result["seconds"] for run in runs], 0, 1.0),
        ]
        rows.append(row)
    headings = [
        "method",
        "runs",
        "accuracy %",
        "ECE",
        "ECE, scaled",
        f"{detector} near %",
        f"{detector} far %",
        "MFLOP",
        "seconds",
    ]
    images = escape(which_images(run.summary for runs in methods.values() for run in runs)).replace("\n", "<br>")
    note = (
        "Mean ± deviation over runs. ECE, scaled: after temperature scaling on validation images. Near and far: mean "
        "AUROC of the unknown sets. MFLOP: of one image's inference under the masks. Click a heading to sort."
        f"<br>{images}"
    )
    return table(headings, rows, lower=(3, 4, 7, 8), bold=_is_one(methods)) + f"<p><small>{note}</small></p>"


def _detectors(methods: Methods) -> str:
    tables = [t for runs in methods.values() for run in runs for t in run.summary["detectors"].values()]
    sets = list(dict.fromkeys(name for table in tables for name in table["sets"]))
    groups = [group for group in ("near", "far") if any(group in table for table in tables)]
    text = []
    for metric, called, lower in (("auroc", "AUROC %", False), ("fpr95", "FPR-95 %", True)):
        rows = []
        for detector in _all_detectors(methods):
            for method, runs in methods.items():
                if any(detector in run.summary["detectors"] for run in runs):
                    cells = [cell(_values(runs, "detectors", detector, "sets", name, metric)) for name in sets]
                    cells += [cell(_values(runs, "detectors", detector, group, metric)) for group in groups]
                    rows.append([detector, method, *cells])
        columns = ["detector", "method", *sets, *(f"{group} mean" for group in groups)]
        text.append(f"<h3>{called}</h3>")
        text.append(table(columns, rows, 2, range(2, len(columns)) if lower else (), bold=_is_one(methods)))
    left = {
        f"{name}: {why}" for runs in methods.values() for run in runs for name, why in run.summary["left_out"].items()
    }
    if left:
        text.append(f"<p><small>Left out: {escape('; '.join(sorted(left)))}</small></p>")
    return "".join(text)


def _comparisons(methods: Methods) -> str:
    """Methods that share seeds, each two or, of many, each with the first: paired tests, corrected over the table."""
    detector = _first(methods)
    measures = {
        "accuracy %": (("known", "accuracy"), True, 100.0),
        "ECE": (("known", "ece"), False, 1.0),
        f"{detector} near AUROC %": (("detectors", detector, "near", "auroc"), True, 100.0),
        f"{detector} far AUROC %": (("detectors", detector, "far", "auroc"), True, 100.0),
    }
    found = []
    first, *others = methods.items()
    pairs = combinations(methods.items(), 2) if len(methods) <= PICTURED else [(first, other) for other in others]
    for (name_a, runs_a), (name_b, runs_b) in pairs:
        seeds_a, seeds_b = ({run.recipe.seed: run for run in runs} for runs in (runs_a, runs_b))
        # Numbers of different images are not compared.
        shared = [s for s in seeds_a if s in seeds_b and _about(seeds_a[s]) == _about(seeds_b[s])]
        for measure, (path, higher, scale) in measures.items():
            a, b = (_values([by_seed[seed] for seed in shared], *path) for by_seed in (seeds_a, seeds_b))
            if len(a) == len(b) and a:
                p = paired_test(a, b) if len(a) > 1 else nan
                found.append((name_b, name_a, measure, b, a, higher, scale, p))
    if not found:
        return ""
    rows = []
    for (name_a, name_b, measure, a, b, higher, scale, _), p in zip(found, holm([f[-1] for f in found]), strict=True):
        differences = [scale * (x - y) for x, y in zip(a, b, strict=True)]
        digits = 4 if scale == 1 else 2
        if len(a) < 2:
            rows.append([name_a, name_b, measure, f"{differences[0]:+.{digits}f}", "-", "-", "one seed: no claim"])
            continue
        low, high = interval(differences)
        word = verdict(a, b, float(p), higher_is_better=higher)
        between = f"[{low:+.{digits}f}, {high:+.{digits}f}]"
        rows.append([name_a, name_b, measure, f"{mean(differences):+.{digits}f}", between, f"{p:.3f}", word])
    headings = ["method", "against", "measure", "difference", "95% interval", "p", "verdict"]
    note = "Paired t-test over shared seeds, Holm's correction over the table; intervals are bootstrapped over seeds."
    return table(headings, rows, words=3) + f"<p><small>{note}</small></p>"


def _about(run: Run) -> tuple[str, Any]:
    """Which images a run was scored on."""
    return run.recipe.benchmark, which_scored(run.summary)


def _scores(methods: Methods) -> str:
    """Histograms and ROC curves of the first run of each method."""
    detector = _first(methods)
    scores = {name: s for name, runs in methods.items() if (s := runs[0].scores) is not None and detector in s}
    if not scores:
        return "<p>The scores themselves were not kept with these runs.</p>"
    caption = (
        f"{detector} scores of the first run of each method, as percentile among known images. What is left of the "
        "line is rejected when 95% of the known images are accepted."
    )
    text = figure(figures.score_histograms(scores, detector), caption)
    text += figure(
        figures.roc(scores, detector), f"ROC curves of {detector}: known images accepted against unknown ones."
    )
    rows = []
    for method, by_detector in scores.items():
        known = by_detector[detector][KNOWN]
        for name, values in by_detector[detector].items():
            if name != KNOWN:
                low, high = auroc_interval(known, values)
                auc = methods[method][0].summary["detectors"][detector]["sets"][name]["auroc"]
                rows.append([method, name, cell([auc]), f"[{100 * low:.1f}, {100 * high:.1f}]"])
    note = "<p><small>DeLong's interval of one run's AUROC: over images, not over training runs.</small></p>"
    return text + table(["method", "unknown set", f"{detector} AUROC %", "95% interval"], rows, words=2) + note


def _calibration(methods: Methods) -> str:
    known = {name: k for name, runs in methods.items() if (k := runs[0].known) is not None}
    caption = (
        "How often predictions of a confidence are right, first run of each method: on the diagonal a network knows "
        "what it knows. Bars show how many images there are."
    )
    return figure(figures.reliability(known), caption) if known else ""


def _sparsity(methods: Methods) -> str:
    runs = [run for several in methods.values() for run in several]
    if len({run.recipe.sparsity for run in runs}) < 2:
        return ""
    detector = _first(methods)
    alike = labels([replace(run.recipe, sparsity=0.0) for run in runs])  # what else differs between them
    points = [
        (
            alike[replace(run.recipe, sparsity=0.0).name],
            100 * run.recipe.sparsity,
            group,
            100 * run.summary["detectors"][detector][group]["auroc"],
        )
        for run in runs
        for group in ("near", "far")
        if group in run.summary["detectors"].get(detector, {})
    ]  # fmt: skip
    return figure(
        figures.over_sparsity(points, detector), f"{detector} AUROC over sparsity, a dot a run, lines their means."
    )


def _training(methods: Methods) -> str:
    logs = {name: runs[0].log for name, runs in methods.items() if runs[0].log}
    caption = (
        "Validation accuracy, the weight w of the unknown-aware loss, and the mean probability of the unknown output, "
        "first run of each method."
    )
    return figure(figures.over_epochs(logs), caption) if logs else ""


def _masks(methods: Methods) -> str:
    layers = {name: d for name, runs in methods.items() if (d := runs[0].result.get("layer_density"))}
    caption = "Share of weights that exist in each layer, first run of each sparse method."
    return figure(figures.layers(layers), caption) if layers else ""


def _examples(methods: Methods) -> str:
    text = []
    for method, runs in methods.items():
        found = runs[0].examples
        if not found:
            continue
        text.append(f"<h3>{escape(method)}</h3>")
        for key, images in found.items():
            side, _, name = key.partition("/")
            if name == KNOWN:
                what = {"right": "Known, most confident and right", "wrong": "Known, most confident and wrong"}[side]
            else:
                what = {"right": f"{name}: most surely unknown", "wrong": f"{name}: most taken for known"}[side]
            shown = "".join(f'<img alt="{escape(what)}" src="{png(image)}">' for image in images)
            text.append(f'<div>{escape(what)}</div><div class="images">{shown}</div>')
    return "".join(text)


def _recipes(runs: Sequence[Run], left_out: Sequence[str]) -> str:
    text = []
    for run in runs:
        facts = {f.name: getattr(run.recipe, f.name) for f in fields(Recipe)}
        facts |= {"objective_options": dict(run.recipe.objective_options)}
        facts |= {
            key: run.result[key] for key in ("model_sha256", "software", "hardware", "seconds") if key in run.result
        }
        shown = escape(json.dumps(facts, indent=1))
        text.append(f"<details><summary>{escape(run.recipe.name)}</summary><pre>{shown}</pre></details>")
    if left_out:
        text.append(f"<p>Left out: {escape('; '.join(left_out))}</p>")
    return "".join(text)
