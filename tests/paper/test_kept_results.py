"""The tables that are kept under results/ are those of the runs that are kept there."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moon.paper.items import items
from moon.paper.render import to_csv, to_markdown
from moon.paper.spec import FULL
from moon.paper.table import PaperTable
from moon.score.files import read_summary

RESULTS = Path(__file__).parents[2] / "results"
TABLES = sorted(
    (path.parent.parent.name, path.stem)
    for data in ("cifar10", "mnist")
    for path in RESULTS.glob(f"{data}/paper/*.csv")
)


@pytest.mark.parametrize(("data", "key"), TABLES)
def test_kept_tables_match_kept_runs(data, key):
    scale = replace(FULL.with_benchmarks([f"{data}={data}-part"]), settings={"precision": "bfloat16"})
    kept = RESULTS / data
    table = PaperTable.read(items()[key], scale, kept, kept)
    hint = "regenerate them with `moon paper show` and the options in docs/results.md"
    assert to_csv(table) == (kept / "paper" / f"{key}.csv").read_text(), hint
    assert to_markdown(table) == (kept / "paper" / f"{key}.md").read_text(), hint


def test_the_best_preset_reaches_the_published_numbers():
    runs = [read_summary(path.parent) for path in sorted(RESULTS.glob("cifar10-best/*/scores.json"))]
    fisher = [run["detectors"]["fisher"] for run in runs]
    assert np.mean([one["near"]["auroc"] for one in fisher]) >= 0.915
    assert np.mean([one["far"]["auroc"] for one in fisher]) >= 0.97
    assert np.mean([run["known"]["accuracy"] for run in runs]) >= 0.94
    assert np.mean([run["known_scaled"]["ece"] for run in runs]) <= 0.015
    assert [run["images"]["known"] for run in runs] == [9000] * 3  # seeds
