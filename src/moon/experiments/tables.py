"""Tables from scored runs. Numbers come as fractions and are shown in percent, but for ECE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from rich import box
from rich.table import Table


def spread(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """'97.1' of one value, '97.1 ± 0.3' (standard deviation) of several."""
    text = f"{scale * mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * stdev(values):.{digits}f}"


def _table(title: str) -> Table:
    """Narrow enough for a terminal of 80 columns."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)


def known_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """Methods (each with the scores.json of its runs) on the known test set, and whether their extra output fills."""
    table = _table("Known inputs, and the unknown output")
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
    return table


def unknown_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """AUROC over FPR-95 of each detector, method and unknown set, with near and far means."""
    some = next(iter(methods.values()))[0]
    sets = list(next(iter(some["detectors"].values()))["sets"])
    groups = [group for group in ("near", "far") if group in next(iter(some["detectors"].values()))]
    # Two lines a cell where one would not fit.
    stacked = len(sets) + len(groups) > 5 or any(len(runs) > 1 for runs in methods.values())
    separator, word = ("\n", "above") if stacked else ("/", "/")
    table = _table(f"Unknown inputs: AUROC % (higher is better) {word} FPR-95 % (lower is better)")
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
    return table


def summary_table(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> Table:
    """A line a method and detector: how many runs, accuracy, ECE, and the near and far means of AUROC."""
    table = _table("Runs, known inputs, and AUROC % of unknown ones (higher is better)")
    for heading in ("method", "detector", "runs", "accuracy %", "ECE", "near", "far"):
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
    return table


def _cell(rows: Sequence[Mapping[str, float]], separator: str) -> str:
    auroc, fpr = ([row[name] for row in rows] for name in ("auroc", "fpr95"))
    return f"{spread(auroc)}{separator}{spread(fpr)}"
