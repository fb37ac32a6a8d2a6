"""Tables from scored runs. Numbers come as fractions and are shown in percent, but for ECE."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from moon.recipe.recipe import Recipe
from moon.run.images import KNOWN


def spread(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """'97.1' of one value, '97.1 ± 0.3' (standard deviation) of several."""
    text = f"{scale * mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * stdev(values):.{digits}f}"


def _table() -> Table:
    """Narrow enough for a terminal of 80 columns."""
    return Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def fitted(labels: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[str]], width: int) -> list[Table]:
    """A table of labelled rows that breaks no word: what does not fit so wide a terminal goes into tables below it."""
    least = [_longest([*column.split(), *_lines(row[i] for row in cells)]) for i, column in enumerate(columns)]
    label_width = min(_longest(labels), max(width // 4, _longest(word for label in labels for word in label.split())))
    tables = []
    for chosen, spare in _divided(least, width - label_width - 2):
        table = _table()
        table.add_column("", width=label_width)
        for place, i in enumerate(chosen):  # what room is left goes to long headings
            more = min(spare // (len(chosen) - place), max(len(columns[i]) - least[i], 0))
            spare -= more
            table.add_column(columns[i], justify="right", width=least[i] + more)
        for label, row in zip(labels, cells, strict=True):
            table.add_row(label, *(row[i] for i in chosen))
        tables.append(table)
    return tables


def _longest(words: Iterable[str]) -> int:
    return max(map(len, words), default=0)


def _lines(cells: Iterable[str]) -> list[str]:
    return [line for cell in cells for line in Text.from_markup(cell).plain.split("\n")]


def _divided(widths: Sequence[int], room: int) -> list[tuple[list[int], int]]:
    """Columns of these widths, two blanks apart, in as many tables as have room for them: (columns, room left) each."""
    tables: list[tuple[list[int], int]] = []
    for i, width in enumerate(widths):
        if not tables or tables[-1][1] < width + 2:
            tables.append(([], room))
        chosen, left = tables.pop()
        tables.append(([*chosen, i], left - width - 2))
    return tables


def which_images(runs: Iterable[Mapping[str, Any]]) -> str:
    """Exactly which images the runs were scored on: a line for each choice of sets, with counts and digests."""
    counts = Counter(_sets(run) for run in runs)
    several = len(counts) > 1
    lines = [f"{sets}{f' ({number} runs)' if several else ''}" for sets, number in counts.items()]
    return "Images scored (count, SHA-256): " + "\n".join(lines)


def _sets(run: Mapping[str, Any]) -> str:
    digests = run.get("sha256", {})
    shown = {name: f"{name} {count:,} {digests.get(name, '')[:8]}".rstrip() for name, count in run["images"].items()}
    groups = [("", [KNOWN])] + [(f"{group} ", run[group]) for group in ("near", "far") if run.get(group)]
    if len(groups) == 1:  # of a run that does not say which is which
        groups = [("", list(shown))]
    sets = "; ".join(f"{group}{', '.join(shown[name] for name in names)}" for group, names in groups)
    missing = f"; not found: {', '.join(run['missing'])}" if run["missing"] else ""
    how = f"; read in {run['precision']}" if "precision" in run else ""
    how += "; each read mirrored, too" if "mirrored" in run else ""
    return f"{run['benchmark']}: {sets}{missing}{how}"


def known_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Group:
    """Methods (each with the scores.json of its runs) on the known test set, and whether their extra output fills."""
    table = _table()
    table.add_column("method")
    for heading in ("accuracy %", "ECE", "NLL"):
        table.add_column(heading, justify="right")
    parts = ("correct", "wrong", "unknown")
    for part in parts:
        table.add_column(f"p_unknown\n{part} %", justify="right")
    for method, runs in methods.items():
        known = [run["known"] for run in runs]
        cells = [
            spread([k["accuracy"] for k in known]),
            spread([k["ece"] for k in known], 3, 1.0),
            spread([k["nll"] for k in known], 3, 1.0),
        ]
        for part in parts:
            rows = [[p[f"p_unknown_{part}"] for p in run["p_unknown"].values()] for run in runs]
            values = [mean(row) for row in rows if row and None not in row]
            cells.append(spread(values, 2) if values else "-")
        table.add_row(method, *cells)
    return Group("Known inputs, and the unknown output", table)


def unknown_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Group:
    """AUROC over FPR-95 of each detector, method and unknown set, with near and far means."""
    some = next(iter(methods.values()))[0]
    sets = list(next(iter(some["detectors"].values()))["sets"])
    groups = [group for group in ("near", "far") if group in next(iter(some["detectors"].values()))]
    # Two lines a cell where one would not fit.
    stacked = len(sets) + len(groups) > 5 or any(len(runs) > 1 for runs in methods.values())
    separator, word = ("\n", "above") if stacked else ("/", "/")
    table = _table()
    table.add_column("detector", no_wrap=True)
    table.add_column("method", overflow="fold")
    for name in sets:
        table.add_column(name, justify="right", overflow="fold")
    for group in groups:
        table.add_column(f"{group}\nmean", justify="right", style="bold")
    detectors = list(dict.fromkeys(d for runs in methods.values() for run in runs for d in run["detectors"]))
    for detector in detectors:
        for method, runs in methods.items():
            scored = [run["detectors"][detector] for run in runs if detector in run["detectors"]]
            if not scored:
                cells = ["-"] * (len(sets) + len(groups))
            else:
                cells = [_cell([s["sets"][name] for s in scored], separator) for name in sets]
                cells += [_cell([s[group] for s in scored], separator) for group in groups]
            last = method == list(methods)[-1]
            table.add_row(detector, method, *cells, end_section=last)
    title = f"Unknown inputs: AUROC % (higher is better) {word} FPR-95 % (lower is better)"
    return Group(title, table, which_images(run for runs in methods.values() for run in runs))


def summary_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Group:
    """A line a method and detector: how many runs, accuracy, ECE, and the near and far means of AUROC."""
    table = _table()
    for heading in ("method", "detector", "n", "accuracy %", "ECE", "near", "far"):
        is_word = heading in ("method", "detector")
        table.add_column(heading, justify="left" if is_word else "right", overflow="fold")
    for method, runs in methods.items():
        known = [run["known"] for run in runs]
        head = [
            method,
            str(len(runs)),
            spread([k["accuracy"] for k in known]),
            spread([k["ece"] for k in known], 3, 1.0),
        ]
        detectors = list(dict.fromkeys(d for run in runs for d in run["detectors"]))
        for number, detector in enumerate(detectors):
            scored = [run["detectors"][detector] for run in runs if detector in run["detectors"]]
            means = [
                spread([s[group]["auroc"] for s in scored]) if all(group in s for s in scored) else "-"
                for group in ("near", "far")
            ]
            name, *known_cells = head if number == 0 else [""] * len(head)
            table.add_row(name, detector, *known_cells, *means, end_section=number == len(detectors) - 1)
    title = "Accuracy and ECE of known inputs, AUROC % of unknown ones (higher is better), over n runs"
    return Group(title, table, which_images(run for runs in methods.values() for run in runs))


def _cell(rows: Sequence[Mapping[str, float]], separator: str) -> str:
    auroc, fpr = ([row[name] for row in rows] for name in ("auroc", "fpr95"))
    return f"{spread(auroc)}{separator}{spread(fpr)}"


def tidy(recipe: Recipe, label: str, scores: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a detector and unknown set, with what the run is and all its numbers."""
    about = {name: getattr(recipe, name) for name in ("benchmark", "net", "objective", "topology", "sparsity", "seed")}
    about = {"run": recipe.name, "method": label} | about | {f"known_{k}": v for k, v in scores["known"].items()}
    return [
        about
        | {"detector": detector, "set": name, "images": scores["images"].get(name, "")}
        | {"sha256": scores.get("sha256", {}).get(name, "")[:16]}
        | metrics
        for detector, table in scores["detectors"].items()
        for name, metrics in (table["sets"] | {g: table[g] for g in ("near", "far") if g in table}).items()
    ]


def csv_text(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
