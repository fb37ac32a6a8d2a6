"""A page about runs that a person would like to read: one HTML file that loads nothing from outside."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from html import escape
from importlib.resources import files
from itertools import combinations
from math import nan
from pathlib import Path
from statistics import mean, stdev
from string import Template
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moon.experiments import figures
from moon.experiments.plan import labels
from moon.experiments.recipe import Recipe
from moon.experiments.run import load_result, read_log
from moon.experiments.score import KNOWN, Scores, read_scores, read_summary, which_scored
from moon.experiments.tables import which_images
from moon.metrics import auroc_interval, holm, interval, paired_test, verdict
from moon.training.checkpoint import write_text

PICTURED = 6  # methods, at most: more would not be told apart in a picture


@dataclass(frozen=True)
class Run:
    """All that a run's folder says; scores and arrays may be missing where only summaries were kept."""

    folder: Path
    recipe: Recipe
    result: Mapping[str, Any]
    log: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Any]

    @cached_property
    def scores(self) -> Scores | None:
        found = read_scores(self.folder)
        return None if found is None else found[1]

    @cached_property
    def known(self) -> dict[str, NDArray] | None:
        return _arrays(self.folder / "known.npz")

    @cached_property
    def examples(self) -> dict[str, NDArray] | None:
        return _arrays(self.folder / "examples.npz")


def collect(paths: Iterable[Path]) -> tuple[list[Run], list[str]]:
    """The finished, scored runs in these folders or in folders of them, and a line for each that is left out."""
    runs: list[Run] = []
    left_out: list[str] = []
    seen: set[str] = set()
    for path in paths:
        if not path.is_dir():
            raise ValueError(f"{path}: no such folder; give run folders, or folders of them")
        inside = sorted(p.parent for p in path.glob("*/recipe.json"))
        if not inside and not (path / "recipe.json").exists():
            raise ValueError(f"{path}: no run in it; give run folders, or folders of them")
        for folder in [path] if (path / "recipe.json").exists() else inside:
            if folder.name in seen:
                left_out.append(f"{folder}: is on the page already")
            elif not (folder / "result.json").exists():
                left_out.append(f"{folder.name}: is not finished")
            elif (summary := read_summary(folder)) is None or not summary["detectors"]:
                left_out.append(f"{folder.name}: is not scored; moon score {folder}")
            else:
                seen.add(folder.name)
                recipe, result = Recipe.load(folder / "recipe.json"), load_result(folder)
                runs.append(Run(folder, recipe, result, read_log(folder), summary))
    if not runs:
        raise ValueError(f"no finished and scored run to report ({'; '.join(left_out)})")
    return runs, left_out


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
    template = Template((files("moon.experiments") / "report.html").read_text())
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


def _cell(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> tuple[str, float | None]:
    """The text of a cell and the value it is sorted by."""
    if not values:
        return "-", None
    spread = f" ± {scale * stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{scale * mean(values):.{digits}f}{spread}", mean(values)


def _table(
    headings: Sequence[str],
    rows: Sequence[Sequence[Any]],
    words: int = 1,
    lower: Iterable[int] = (),
    bold: bool = True,
) -> str:
    """A table that can be sorted; the best number of each column is bold, in the columns of `lower` the smallest."""
    best: dict[int, float] = {}
    for column in range(words, len(headings)):
        values = [row[column][1] for row in rows if isinstance(row[column], tuple) and row[column][1] is not None]
        if bold and len(values) > 1 and headings[column] != "runs":
            best[column] = min(values) if column in lower else max(values)
    head = "".join(
        f'<th scope="col"{" class=word" if i < words else ""}><button type="button">{escape(h)}</button></th>'
        for i, h in enumerate(headings)
    )
    lines = []
    for row in rows:
        cells = []
        for column, cell in enumerate(row):
            text, value = cell if isinstance(cell, tuple) else (cell, None)
            kinds = "word" * (column < words) or "best" * (value is not None and best.get(column) == value)
            data = "" if value is None else f' data-value="{value:.8g}"'
            cells.append(f"<td{f' class={kinds}' if kinds else ''}{data}>{escape(str(text))}</td>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _methods(methods: Methods) -> str:
    detector = _first(methods)
    rows = []
    for method, runs in methods.items():
        row: list[Any] = [method, (str(len(runs)), float(len(runs)))]
        row += [
            _cell(_values(runs, "known", "accuracy")),
            _cell(_values(runs, "known", "ece"), 4, 1.0),
            _cell(_values(runs, "known_scaled", "ece"), 4, 1.0),
            _cell(_values(runs, "detectors", detector, "near", "auroc")),
            _cell(_values(runs, "detectors", detector, "far", "auroc")),
            _cell([f["inference"] for run in runs if (f := run.result.get("flops"))], 1, 1e-6),
            _cell([run.result["seconds"] for run in runs], 0, 1.0),
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
    return _table(headings, rows, lower=(3, 4, 7, 8), bold=_is_one(methods)) + f"<p><small>{note}</small></p>"


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
                    cells = [_cell(_values(runs, "detectors", detector, "sets", name, metric)) for name in sets]
                    cells += [_cell(_values(runs, "detectors", detector, group, metric)) for group in groups]
                    rows.append([detector, method, *cells])
        columns = ["detector", "method", *sets, *(f"{group} mean" for group in groups)]
        text.append(f"<h3>{called}</h3>")
        text.append(_table(columns, rows, 2, range(2, len(columns)) if lower else (), bold=_is_one(methods)))
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
    return _table(headings, rows, words=3) + f"<p><small>{note}</small></p>"


def _about(run: Run) -> tuple[str, Any]:
    """Which images a run was scored on."""
    return run.recipe.benchmark, which_scored(run.summary)


def _figure(picture: Any, caption: str) -> str:
    shown = figures.svg(picture, escape(caption, quote=True))
    return f"<figure>{shown}<figcaption>{escape(caption)}</figcaption></figure>"


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
    text = _figure(figures.score_histograms(scores, detector), caption)
    text += _figure(
        figures.roc(scores, detector), f"ROC curves of {detector}: known images accepted against unknown ones."
    )
    rows = []
    for method, by_detector in scores.items():
        known = by_detector[detector][KNOWN]
        for name, values in by_detector[detector].items():
            if name != KNOWN:
                low, high = auroc_interval(known, values)
                auc = methods[method][0].summary["detectors"][detector]["sets"][name]["auroc"]
                rows.append([method, name, _cell([auc]), f"[{100 * low:.1f}, {100 * high:.1f}]"])
    note = "<p><small>DeLong's interval of one run's AUROC: over images, not over training runs.</small></p>"
    return text + _table(["method", "unknown set", f"{detector} AUROC %", "95% interval"], rows, words=2) + note


def _calibration(methods: Methods) -> str:
    known = {name: k for name, runs in methods.items() if (k := runs[0].known) is not None}
    caption = (
        "How often predictions of a confidence are right, first run of each method: on the diagonal a network knows "
        "what it knows. Bars show how many images there are."
    )
    return _figure(figures.reliability(known), caption) if known else ""


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
    return _figure(
        figures.over_sparsity(points, detector), f"{detector} AUROC over sparsity, a dot a run, lines their means."
    )


def _training(methods: Methods) -> str:
    logs = {name: runs[0].log for name, runs in methods.items() if runs[0].log}
    caption = (
        "Validation accuracy, the weight w of the unknown-aware loss, and the mean probability of the unknown output, "
        "first run of each method."
    )
    return _figure(figures.over_epochs(logs), caption) if logs else ""


def _masks(methods: Methods) -> str:
    layers = {name: d for name, runs in methods.items() if (d := runs[0].result.get("layer_density"))}
    caption = "Share of weights that exist in each layer, first run of each sparse method."
    return _figure(figures.layers(layers), caption) if layers else ""


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
            shown = "".join(f'<img alt="{escape(what)}" src="{_png(image)}">' for image in images)
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


def _png(image: NDArray[np.uint8]) -> str:
    data = io.BytesIO()
    Image.fromarray(image if image.shape[2] == 3 else image[..., 0]).save(data, "PNG")
    return f"data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}"


def _arrays(path: Path) -> dict[str, NDArray] | None:
    try:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, BadZipFile):
        return None
