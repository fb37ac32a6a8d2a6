"""The numbers that the paper publishes, read from `published.csv` in this folder."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from importlib.resources import files

from moon.paper.spec import Measurement

# The paper's names of unknown sets for which we use another name.
PAPER_NAMES = {"cifar100-part": "cifar100", "dtd": "texture", "places": "places365"}


@cache
def published_rows() -> tuple[Mapping[str, str], ...]:
    """Return the rows of `published.csv`."""
    with (files("moon.paper") / "published.csv").open(encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


@cache
def published(key: str) -> dict[tuple[Measurement, str], tuple[float, float | None]]:
    """Return the paper's mean, and its standard deviation or None, for each measurement and set of a table or figure.

    Values are in the paper's units. The paper's tables do not always agree, so each table has its own numbers. For
    anything that is not a table of the paper, the first matching number in the file is used.
    """
    is_table = key.startswith("table")
    found: dict[tuple[Measurement, str], tuple[float, float | None]] = {}
    for row in published_rows():
        if not is_table or key == f"table{row['table']}":
            value = float(row["mean"]), float(row["std"]) if row["std"] else None
            for measurement in measurements_of(row):
                found.setdefault((measurement, row["set"]), value)
    return found


def measurements_of(row: Mapping[str, str]) -> list[Measurement]:
    """Return what a row of `published.csv` measures.

    The paper does not define "without auto-tuning" (AT), so its number belongs to both possible readings.
    """
    texts = {f.name: row[f.name] for f in fields(Measurement) if f.name not in ("training", "sparsity")}
    ambiguous = row["training"] == "without-at"
    trainings = ("without-at-final", "without-at-initial") if ambiguous else (row["training"],)
    return [Measurement(**texts, sparsity=float(row["sparsity"]), training=training) for training in trainings]
