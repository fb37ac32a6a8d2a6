"""The tables and figures in results/*/paper."""

from pathlib import Path

import paper_files
import pytest
from kept import Kept

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_stale_tables_and_figures_of_the_paper_are_reported(tmp_path, monkeypatch):
    for data in ("mnist", "tin100"):
        (tmp_path / "results" / data).mkdir(parents=True)
        for path in (ROOT / "results" / data).iterdir():
            if path.name != "paper":
                (tmp_path / "results" / data / path.name).symlink_to(path)
    monkeypatch.setattr(paper_files, "ITEMS", {"mnist": ("mnist",)})
    monkeypatch.setattr(paper_files, "DRAWN", {"tin100": paper_files.DRAWN["tin100"]})
    kept = Kept(tmp_path / "results")
    assert paper_files.write_paper_files(kept, check=False) == []
    assert paper_files.write_paper_files(kept, check=True) == []
    table, figure = tmp_path / "results/mnist/paper/mnist.csv", tmp_path / "results/tin100/paper/auroc.svg"
    assert (ROOT / "results/mnist/paper/mnist.csv").read_text() == table.read_text()
    table.write_text(table.read_text().replace("accuracy", "accurracy", 1))
    digest = paper_files._digest(figure)
    figure.write_text(figure.read_text().replace(digest, "0" * 64))
    (tmp_path / "results/mnist/paper/old.md").write_text("")
    csv, svg, stray = paper_files.write_paper_files(kept, check=True)
    assert csv.startswith("results/mnist/paper/mnist.csv:")
    assert "accurracy" in csv
    assert svg == (
        f"results/tin100/paper/auroc.svg:1: says the plotted data are {'0' * 64}, should say {digest}; run make results"
    )
    assert stray == "results/mnist/paper/old.md: nothing writes this file; delete it, or add it to ITEMS"
