"""Tables of scored runs for a terminal, and their numbers as CSV.

A method is a list of runs that differ only in their seed; a run is the content of its scores.json. Fractions are shown
in percent, except ECE and NLL.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any

from rich.console import Group

from moon.recipe import Recipe
from moon.results.format import MISSING, mean_and_deviation
from moon.results.layout import compact_table
from moon.results.temperatures import describe_temperatures
from moon.score.files import KNOWN
from moon.score.temperatures import P_UNKNOWN
from moon.suggest import counted

Methods = Mapping[str, Sequence[Mapping[str, Any]]]


def describe_images(runs: Iterable[Mapping[str, Any]]) -> str:
    """Describe exactly which images some runs were scored on, one line per selection of sets."""
    counts = Counter(_describe_sets(run) for run in runs)
    lines = list(counts)
    if len(counts) > 1:
        lines = [f"{sets} ({counted(number, 'run')})" for sets, number in counts.items()]
    return "Images scored (count, SHA-256): " + "\n".join(lines)


def _describe_sets(run: Mapping[str, Any]) -> str:
    digests = run.get("sha256", {})
    shown = {name: f"{name} {count:,} {digests.get(name, '')[:8]}".rstrip() for name, count in run["images"].items()}
    groups = [("", [KNOWN])] + [(f"{group} ", run[group]) for group in ("near", "far") if run.get(group)]
    if len(groups) == 1:  # old files do not record which sets are near and which are far
        groups = [("", list(shown))]
    sets = "; ".join(f"{group}{', '.join(shown[name] for name in names)}" for group, names in groups)
    missing = f"; not found: {', '.join(run['missing'])}" if run["missing"] else ""
    how = f"; evaluated in {run['precision']}" if "precision" in run else ""
    how += "; averaged over each image and its mirror image" if "mirrored" in run else ""
    return f"{run['benchmark']}: {sets}{missing}{how}"


def known_table(methods: Methods) -> Group:
    """Tabulate accuracy, calibration and, if a network has that output, the mean unknown probability.

    Methods are the scores.json of their runs; the same holds for the functions below.
    """
    table = compact_table()
    table.add_column("method")
    for heading in ("accuracy %", "ECE", "NLL"):
        table.add_column(heading, justify="right")
    has_unknown = any(run["p_unknown"] for runs in methods.values() for run in runs)
    parts = ("correct", "wrong", "unknown") if has_unknown else ()
    for part in parts:
        table.add_column(f"p_unknown\n{part} %", justify="right")
    for method, runs in methods.items():
        cells = [
            mean_and_deviation([run["known"]["accuracy"] for run in runs]),
            mean_and_deviation([run["known"]["ece"] for run in runs], 3, 1.0),
            mean_and_deviation([run["known"]["nll"] for run in runs], 3, 1.0),
        ]
        for part in parts:
            by_run = [[p[f"p_unknown_{part}"] for p in run["p_unknown"].values()] for run in runs]
            values = [mean(of_sets) for of_sets in by_run if of_sets and None not in of_sets]
            cells.append(mean_and_deviation(values, 2))
        table.add_row(method, *cells)
    title = f"Known inputs{', and the mean probability of the unknown output' if has_unknown else ''}"
    return Group(title + _spread(methods), table)


def unknown_table(methods: Methods, names: Collection[str] | None = None) -> Group:
    """Tabulate AUROC and FPR-95 of detectors, or of those named, on each unknown set, with near and far means."""
    some = next(iter(methods.values()))[0]
    groups = [group for group in ("near", "far") if any(group in each for each in some["detectors"].values())]
    sets = [name for group in groups for name in some.get(group, ())]
    sets = sets or list(next(iter(some["detectors"].values()))["sets"])  # of a file that does not name the groups
    alone = {some[group][0]: group for group in groups if len(some.get(group, ())) == 1}  # they are the mean
    groups = [group for group in groups if group not in alone.values()]
    # AUROC above FPR-95 where both would not fit on one line.
    stacked = len(sets) + len(groups) > 5 or any(len(runs) > 1 for runs in methods.values())
    separator, word = ("\n", "above") if stacked else ("/", "/")
    table = compact_table()
    table.add_column("detector", no_wrap=True)
    table.add_column("method", overflow="fold")
    for name in sets:
        heading, style = (f"{name}\n({alone[name]})", "bold") if name in alone else (name, "")
        table.add_column(heading, justify="right", overflow="fold", style=style)
    for group in groups:
        table.add_column(f"{group}\nmean", justify="right", style="bold")
    detectors = list(dict.fromkeys(d for runs in methods.values() for run in runs for d in run["detectors"]))
    for detector in detectors if names is None else [name for name in detectors if name in names]:
        for method, runs in methods.items():
            scored = [run["detectors"][detector] for run in runs if detector in run["detectors"]]
            cells = [_auroc_and_fpr([s["sets"][name] for s in scored if name in s["sets"]], separator) for name in sets]
            cells += [_auroc_and_fpr([s[group] for s in scored if group in s], separator) for group in groups]
            is_last = method == list(methods)[-1]
            label = f"{method} (n = {len(scored)})" if 0 < len(scored) < len(runs) else method
            table.add_row(detector, label, *cells, end_section=is_last and (len(methods) > 1 or stacked))
    title = f"Unknown inputs: AUROC % (higher is better) {word} FPR-95 % (lower is better)" + _spread(methods)
    return Group(title, table, *_remarks(methods, names))


def _spread(methods: Methods) -> str:
    """What the numbers after ± are, if there are any."""
    return "; mean ± standard deviation over runs" if any(len(runs) > 1 for runs in methods.values()) else ""


def _remarks(methods: Methods, names: Collection[str] | None = None) -> list[str]:
    """What the detectors' temperatures were, if some depend on one, and which images were scored."""
    every = [run for runs in methods.values() for run in runs]
    temperatures = describe_temperatures(every, None if names is None else [*names, P_UNKNOWN])
    return [text for text in (temperatures, describe_images(every)) if text]


def _auroc_and_fpr(metrics: Sequence[Mapping[str, float]], separator: str) -> str:
    auroc, fpr = ([values[name] for values in metrics] for name in ("auroc", "fpr95"))
    return MISSING if not metrics else f"{mean_and_deviation(auroc)}{separator}{mean_and_deviation(fpr)}"


def summary_table(methods: Methods, *, with_fpr: bool = False) -> Group:
    """Tabulate each method and detector on one line: number of runs, accuracy, ECE, near and far AUROC.

    With near and far FPR-95 the table is too wide for most terminals.
    """
    table = compact_table()
    shown = [(group, "auroc") for group in ("near", "far")] + [(group, "fpr95") for group in ("near", "far")] * with_fpr
    means = [group if metric == "auroc" else f"{group} FPR-95" for group, metric in shown]
    for heading in ("method", "detector", "n", "accuracy %", "ECE", *means):
        is_text = heading in ("method", "detector")
        table.add_column(heading, justify="left" if is_text else "right", overflow="fold")
    for method, runs in methods.items():
        head = [
            method,
            str(len(runs)),
            mean_and_deviation([run["known"]["accuracy"] for run in runs]),
            mean_and_deviation([run["known"]["ece"] for run in runs], 3, 1.0),
        ]
        detectors = list(dict.fromkeys(d for run in runs for d in run["detectors"]))
        for number, detector in enumerate(detectors):
            scored = [run["detectors"][detector] for run in runs if detector in run["detectors"]]
            cells = [
                mean_and_deviation([s[group][metric] for s in scored]) if all(group in s for s in scored) else MISSING
                for group, metric in shown
            ]
            name, count, *known_cells = head if number == 0 else [""] * len(head)
            count = count if len(scored) == len(runs) else f"{len(scored)} of {len(runs)}"
            table.add_row(name, detector, count, *known_cells, *cells, end_section=number == len(detectors) - 1)
    title = "Accuracy and ECE on known inputs, AUROC % on unknown inputs (higher is better)"
    title += ", FPR-95 % (lower is better)" * with_fpr
    return Group(title + _spread(methods), table, *_remarks(methods))


def tidy(recipe: Recipe, label: str, scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a run's numbers as tidy data, one row per detector and unknown set; `near` and `far` are rows as well."""
    facts = {name: getattr(recipe, name) for name in ("benchmark", "net", "objective", "topology", "sparsity", "seed")}
    facts = {"run": recipe.name, "method": label} | facts | {f"known_{k}": v for k, v in scores["known"].items()}
    return [
        facts
        | {"detector": detector, "set": name, "images": scores["images"].get(name, "")}
        | {"sha256": scores.get("sha256", {}).get(name, "")[:16]}
        | {"temperature": scores.get("temperatures", {}).get(detector, {}).get("value", "")}
        | metrics
        for detector, table in scores["detectors"].items()
        for name, metrics in (table["sets"] | {g: table[g] for g in ("near", "far") if g in table}).items()
    ]


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    r"""Return rows as CSV with a header; a key that a row does not have is an empty cell.

    Example:
        >>> from moon.results.tables import csv_text
        >>> csv_text([{"set": "near", "auroc": 0.9}, {"set": "far"}])
        'set,auroc\nnear,0.9\nfar,\n'
    """
    text = io.StringIO()
    keys = dict.fromkeys(key for row in rows for key in row)
    writer = csv.DictWriter(text, fieldnames=list(keys), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
