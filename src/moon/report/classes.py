"""The section about the known classes: which of them a network mistakes for which."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from moon.report.content import Cell, make_table, number_cell
from moon.report.sections import Methods, has_one_benchmark
from moon.results.collect import Run

MOST_CLASSES = 20  # in the table


def classes_section(methods: Methods) -> dict[str, Any] | None:
    """Accuracy by class, and what it is most often mistaken for; one column for the first run of each method."""
    found = {name: runs[0] for name, runs in methods.items() if runs[0].predictions is not None}
    if not found or not has_one_benchmark(methods):
        return None
    labels_of = [np.unique(run.predictions["labels"]) for run in found.values() if run.predictions is not None]
    if any(not np.array_equal(labels, labels_of[0]) for labels in labels_of):
        return None
    first = next(iter(found.values()))
    rows: list[list[Any]] = [
        [_class_name(first, label), *(_of_class(run, label) for run in found.values())]
        for label in labels_of[0].tolist()
    ]
    rows.sort(key=lambda row: min(cell.value for cell in row[1:]))
    table = make_table(["class", *found], rows[:MOST_CLASSES], mark_best=False)
    return {"table": table, "omitted": len(rows[MOST_CLASSES:])}


def _of_class(run: Run, label: int) -> Cell:
    """The accuracy of a run on one class, and the share of the most frequent wrong prediction."""
    assert run.predictions is not None
    predicted = run.predictions["prediction"][run.predictions["labels"] == label]
    wrong, counts = np.unique(predicted[predicted != label], return_counts=True)
    accuracy = number_cell([float((predicted == label).mean())])
    if not len(wrong):
        return accuracy
    most = counts.argmax()
    mistake = f"{counts[most] / len(predicted):.1%} as {_class_name(run, int(wrong[most]))}"
    return replace(accuracy, text=f"{accuracy.text}, {mistake}")


def _class_name(run: Run, label: int) -> str:
    return run.classes[label] if label < len(run.classes) else str(label)
