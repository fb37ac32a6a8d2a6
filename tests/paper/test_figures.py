"""The paper's figures are drawn, whole and where runs are missing."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moon.data import benchmark
from moon.grid.grid import Grid, State
from moon.grid.worker import work
from moon.paper.figures import DRAWINGS, PLAIN, draw
from moon.paper.items import items
from moon.paper.spec import FULL, Scale, recipe, runs
from moon.paper.table import Sheet

SCALE = Scale(dict.fromkeys(("mnist", "cifar10", "cifar100", "imagenet"), "digits"), epochs=4, seeds=2)
SETS = {"near": ["letters"], "far": ["textures", "photos"]}
FIGURES = [item for item in items().values() if item.draw]
ONE_OF_EACH = ("figure1", "figure2", "figure3", "figure4", "figure9", "summary")


def drawn(item, tmp_path):
    draw(Sheet.read(item, SCALE, Path(), tmp_path), tmp_path, tmp_path / "out" / item.key)
    svg = (tmp_path / "out" / f"{item.key}.svg").read_text()
    ElementTree.fromstring(svg)
    with Image.open(tmp_path / "out" / f"{item.key}.png") as image:
        pixels = np.asarray(image.convert("RGB"))
    return svg, int((pixels == tuple(bytes.fromhex(PLAIN[1:]))).all(2).sum())


@pytest.mark.parametrize("key", ONE_OF_EACH)
def test_drawn_with_all_runs_and_with_none(key, tmp_path, fabricate):
    item = items()[key]
    empty, before = drawn(item, tmp_path)
    assert "runs are missing" in empty
    made = set()
    for line in item.lines:
        for seed in range(SCALE.seeds):
            one = recipe(line, SCALE, benchmark(Path(), "digits"), seed)
            if one.name not in made:
                made.add(one.name)
                gain = 0.01 * seed + 0.1 * (line.training == "moon")
                fabricate(tmp_path, one, auroc=0.8 + gain, accuracy=0.8 + gain, fpr95=0.5 - gain, **SETS)
    whole, after = drawn(item, tmp_path)
    assert "runs are missing" not in whole
    assert after > before + 200  # pixels of its colour
    assert len(whole) > len(empty)


def test_the_papers_means_are_crosses(tmp_path):
    assert "the paper's mean" not in drawn(items()["summary"], tmp_path)[0]  # digits have none
    scale = Scale({"cifar10": "cifar10"}, seeds=1)
    draw(Sheet.read(items()["summary"], scale, tmp_path, tmp_path), tmp_path, tmp_path / "summary")
    whole = (tmp_path / "summary.svg").read_text()
    assert "the paper's mean" in whole
    assert whole.count("<use") > len(drawn(items()["summary"], tmp_path)[0].split("<use"))


def test_without_unknown_sets_there_is_nothing_to_draw(tmp_path):
    (tmp_path / "benchmarks.toml").write_text("[alone]\nknown = 'mnist'\nnear = []\nfar = []\n")
    sheet = Sheet.read(items()["summary"], Scale({"cifar10": "alone"}, seeds=1), tmp_path, tmp_path)
    draw(sheet, tmp_path, tmp_path / "summary")
    assert (tmp_path / "summary.svg").exists()


def test_every_kind_of_figure_is_tried():
    assert {item.draw for item in FIGURES} == set(DRAWINGS)
    assert {items()[key].draw for key in ONE_OF_EACH} == set(DRAWINGS)


def test_the_same_figure_is_the_same_file(tmp_path):
    first = drawn(items()["figure4"], tmp_path)[0]
    assert drawn(items()["figure4"], tmp_path)[0] == first


def test_every_table_and_figure_end_to_end(data_root, tmp_path):
    """All of the paper, as small as it goes: trained, scored, tabled and drawn; nothing is missing."""
    (data_root / "benchmarks.toml").write_text("[part]\nknown = 'mnist'\nnear = ['notmnist']\nfar = ['dtd']\n")
    scale = Scale(
        dict.fromkeys(FULL.benchmarks, "part"),
        epochs=2,
        seeds=1,
        sparsities=(0.9,),
        settings={"batch_size": 64, "delta_t_steps": 2, "net": "lenet-norm"},
    )
    wanted = runs(data_root, items().values(), scale)
    grid = Grid.plan(tmp_path, wanted, wanted)
    for job in grid.jobs:
        work(job.folder, data_root)
    assert set(grid.states().values()) == {State.DONE}
    for item in items().values():
        sheet = Sheet.read(item, scale, data_root, tmp_path)
        assert sheet.runs[0] == sheet.runs[1] > 0
        # Not every detector fits every network: one without the extra output, or one with too few right predictions.
        numbers = [number for number in sheet.numbers if number.line.detector not in ("unknown", "openmax")]
        assert all(len(number.ours) == 1 for number in numbers), item.key
        assert "-" not in {number.text() for number in numbers}
        for text in (sheet.markdown(), sheet.csv(), sheet.latex()):
            assert text
        if item.draw:
            draw(sheet, tmp_path, tmp_path / "out" / item.key)
            assert (tmp_path / "out" / f"{item.key}.png").stat().st_size > 5000
