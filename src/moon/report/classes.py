"""The section about the known classes: which of them a network mistakes for which."""

from __future__ import annotations

from typing import Any

import numpy as np

from moon.report.content import Cell, make_table, number_cell
from moon.report.sections import Methods, has_one_benchmark
from moon.results.collect import Run
from moon.results.format import MISSING

MOST_CLASSES = 20  # in the table


def classes_section(methods: Methods) -> dict[str, Any] | None:
    """Accuracy by class, and the class that each is most often mistaken for; for the first run of each method."""
    found = {name: runs[0] for name, runs in methods.items() if runs[0].predictions is not None}
    if not found or not has_one_benchmark(methods):
        return None
    labels_of = [np.unique(run.predictions["labels"]) for run in found.values() if run.predictions is not None]
    if any(not np.array_equal(labels, labels_of[0]) for labels in labels_of):
        return None
    rows = []
    for label in labels_of[0].tolist():
        cells = [_of_class(run, label) for run in found.values()]
        rows.append([_class_name(next(iter(found.values())), label), *(cell for both in cells for cell in both)])
    rows.sort(key=lambda row: min(cell.value for cell in row[1::2]))
    headings = ["class", *(text for name in found for text in (f"{name}: accuracy %", f"{name}: mistaken for"))]
    return {"table": make_table(headings, rows[:MOST_CLASSES], mark_best=False), "omitted": len(rows[MOST_CLASSES:])}


def _of_class(run: Run, label: int) -> tuple[Cell, Cell]:
    """The accuracy of a run on one class, and the most frequent wrong prediction with its share."""
    assert run.predictions is not None
    predicted = run.predictions["prediction"][run.predictions["labels"] == label]
    wrong, counts = np.unique(predicted[predicted != label], return_counts=True)
    mistake = MISSING
    if len(wrong):
        most = counts.argmax()
        mistake = f"{_class_name(run, int(wrong[most]))} ({counts[most] / len(predicted):.1%})"
    return number_cell([float((predicted == label).mean())]), Cell(mistake)


def _class_name(run: Run, label: int) -> str:
    return run.classes[label] if label < len(run.classes) else str(label)
