"""The tables that are kept under results/ are those of the runs that are kept there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moon.paper.items import items
from moon.paper.spec import FULL
from moon.paper.table import Sheet
from moon.score.score import read_summary

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(
    (path.parent.parent.name, path.stem)
    for data in ("cifar10", "mnist")
    for path in RESULTS.glob(f"{data}/paper/*.csv")
)


@pytest.mark.parametrize(("data", "key"), TABLES)
def test_kept_tables_are_of_kept_runs(data, key):
    scale = replace(FULL.on([f"{data}={data}-part"]), settings={"precision": "bfloat16"})
    kept = RESULTS / data
    sheet = Sheet.read(items()[key], scale, kept, kept)
    again = "moon paper show with the options of docs/results.md makes them again"
    assert sheet.csv() == (kept / "paper" / f"{key}.csv").read_text(), again
    assert sheet.markdown() == (kept / "paper" / f"{key}.md").read_text(), again


def test_the_best_preset_has_what_is_said_of_it():
    runs = [read_summary(path.parent) for path in sorted(RESULTS.glob("cifar10-best/*/scores.json"))]
    fisher = [run["detectors"]["fisher"] for run in runs]
    assert np.mean([one["near"]["auroc"] for one in fisher]) >= 0.915
    assert np.mean([one["far"]["auroc"] for one in fisher]) >= 0.97
    assert np.mean([run["known"]["accuracy"] for run in runs]) >= 0.94
    assert np.mean([run["known_scaled"]["ece"] for run in runs]) <= 0.015
    assert [run["images"]["known"] for run in runs] == [9000] * 3  # seeds
