"""The tables that are kept under results/ are those of the runs that are kept there."""

from dataclasses import replace
from pathlib import Path

import pytest

from moon.experiments.paper import FULL
from moon.experiments.paper_items import items
from moon.experiments.sheet import Sheet

KEPT = Path(__file__).parents[2] / "results" / "cifar10"


@pytest.mark.parametrize("key", sorted(path.stem for path in (KEPT / "paper").glob("*.csv")))
def test_kept_tables_are_of_kept_runs(key):
    scale = replace(FULL.on(["cifar10=cifar10-part"]), settings={"precision": "bfloat16"})
    sheet = Sheet.read(items()[key], scale, KEPT, KEPT)
    again = "moon paper show with the options of docs/results.md makes them again"
    assert sheet.csv() == (KEPT / "paper" / f"{key}.csv").read_text(), again
    assert sheet.markdown() == (KEPT / "paper" / f"{key}.md").read_text(), again
