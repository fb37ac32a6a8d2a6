"""The paper's figures are drawn, with all runs and with missing ones."""

import csv
import io
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moon.data import find_benchmark
from moon.grid.grid import Grid, State
from moon.grid.worker import work
from moon.paper.figures import DRAWINGS, PLAIN, draw
from moon.paper.items import items
from moon.paper.recipes import needed_runs, recipe_for
from moon.paper.render import to_csv, to_latex, to_markdown
from moon.paper.spec import FULL, Scale
from moon.paper.table import PaperTable

SCALE = Scale(dict.fromkeys(("mnist", "cifar10", "cifar100", "imagenet"), "digits"), epochs=4, seeds=2)
SETS = {"near": ["letters"], "far": ["textures", "photos"]}
ONE_OF_EACH = ("figure1", "figure2", "figure3", "figure4", "figure9", "summary")


def drawn(item, tmp_path):
    """The SVG of a figure, and how many pixels of its PNG have the colour of plain training; nothing is its caption."""
    draw(PaperTable.read(item, SCALE, Path(), tmp_path), tmp_path, tmp_path / "out" / item.key)
    svg = (tmp_path / "out" / f"{item.key}.svg").read_text()
    ElementTree.fromstring(svg)
    assert item.title not in svg
    assert "missing" not in svg
    assert (tmp_path / "out" / f"{item.key}.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "out" / f"{item.key}.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    return svg, int((pixels == tuple(bytes.fromhex(PLAIN[1:]))).all(2).sum())


@pytest.mark.slow
@pytest.mark.parametrize("key", ONE_OF_EACH)
def test_drawn_with_all_runs_and_with_none(key, tmp_path, fabricate):
    item = items()[key]
    empty, before = drawn(item, tmp_path)
    made = set()
    for measurement in item.measurements:
        for seed in range(SCALE.seeds):
            recipe = recipe_for(measurement, SCALE, find_benchmark(Path(), "digits"), seed)
            if recipe.name not in made:
                made.add(recipe.name)
                gain = 0.01 * seed + 0.1 * (measurement.training == "moon")
                fabricate(tmp_path, recipe, auroc=0.8 + gain, accuracy=0.8 + gain, fpr95=0.5 - gain, **SETS)
    complete, after = drawn(item, tmp_path)
    assert after > before + 200
    assert ("95% t interval over seeds" in complete) == (key in ("figure1", "figure2", "figure4"))
    assert ("not measured" in empty) == (key in ("figure1", "figure2", "figure3"))
    assert "not measured" not in complete
    assert len(complete) > len(empty)


@pytest.mark.slow
def test_the_paper_s_means_are_crosses(tmp_path):
    other_data, _ = drawn(items()["summary"], tmp_path)  # the paper has no numbers for digits
    assert "the paper's mean" not in other_data
    scale = Scale({"cifar10": "cifar10"}, seeds=1)
    draw(PaperTable.read(items()["summary"], scale, tmp_path, tmp_path), tmp_path, tmp_path / "summary")
    same_data = (tmp_path / "summary.svg").read_text()
    assert "the paper's mean" in same_data
    assert same_data.count("<use") > other_data.count("<use") + 1


def test_every_kind_of_figure_is_tested():
    assert {item.draw for item in items().values() if item.draw} == set(DRAWINGS)
    assert {items()[key].draw for key in ONE_OF_EACH} == set(DRAWINGS)


def test_files_are_reproducible(tmp_path):
    first, _ = drawn(items()["figure4"], tmp_path)
    assert drawn(items()["figure4"], tmp_path)[0] == first


@pytest.mark.slow
def test_every_table_and_figure_end_to_end(data_root, tmp_path):
    """The whole evaluation at the smallest scale: trained, scored, tabulated and drawn, with nothing missing."""
    (data_root / "benchmarks.toml").write_text("[part]\nknown = 'mnist'\nnear = ['notmnist']\nfar = ['dtd']\n")
    with np.load(data_root / "mnist" / "train.npz") as train:
        half = {name: array[:128] for name, array in train.items()}
    np.savez(data_root / "mnist" / "train.npz", **half)
    scale = Scale(
        dict.fromkeys(FULL.benchmarks, "part"),
        epochs=2,
        seeds=1,
        sparsities=(0.9,),
        settings={"batch_size": 32, "delta_t_steps": 2, "net": "lenet-norm"},
    )
    wanted = needed_runs(data_root, items().values(), scale)
    grid = Grid.plan(tmp_path, wanted, wanted)
    for job in grid.jobs:
        work(job.folder, data_root)
    assert set(grid.states().values()) == {State.DONE}
    for item in items().values():
        table = PaperTable.read(item, scale, data_root, tmp_path)
        assert table.runs_done == table.runs_needed > 0
        # Some detectors do not fit every network: no extra output, or too few correct predictions.
        numbers = [number for number in table.numbers if number.measurement.detector not in ("unknown", "openmax")]
        assert all(len(number.ours) == 1 for number in numbers), item.key
        assert "-" not in {number.text() for number in numbers}
        for text in (to_markdown(table), to_latex(table)):
            assert all(number.text() in text for number in numbers), item.key
        assert len(list(csv.DictReader(io.StringIO(to_csv(table))))) == len(table.numbers)
        if item.draw:
            draw(table, tmp_path, tmp_path / "out" / item.key)
            assert (tmp_path / "out" / f"{item.key}.png").stat().st_size > 5000
