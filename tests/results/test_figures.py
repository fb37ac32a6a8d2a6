"""Pictures of runs: each is drawn, in the format asked for, with what it is about."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from moon.results import figures
from moon.results.figures import known_percentile, save, score_histograms, svg

CHANCE = np.random.default_rng(0)
SCORES = {"msp": {"known": CHANCE.normal(1, 1, 200), "letters": CHANCE.normal(0, 1, 100)}}
KNOWN = {
    "labels": np.arange(60) % 3,
    "prediction": np.arange(60) % 2,
    "confidence": np.linspace(0.4, 1, 60, dtype=np.float32),
}


def test_the_picture_has_a_panel_a_method(tmp_path):
    widths = []
    for count in (1, 2):
        path = tmp_path / "deep" / f"{count}.png"
        save(score_histograms({f"method {i}": SCORES for i in range(count)}, "msp", "title"), path)
        with Image.open(path) as image:
            widths.append(image.width)
            assert len(image.convert("RGB").getcolors(10**6)) > 20
    assert widths == [750, 1440]


def test_percentiles_among_the_known():
    known = np.array([1.0, 2.0, 2.0, 4.0])
    assert known_percentile(known, np.array([0.0, 2.0, 3.0, 9.0])).tolist() == [0.0, 50.0, 75.0, 100.0]


def lines_of(figure):
    return [line for axis in figure.axes for line in axis.lines if len(line.get_xdata()) > 2]


def test_roc_has_the_area_that_auroc_has():
    from moon.metrics import auroc

    (line,) = lines_of(figures.roc({"a": SCORES}, "msp"))
    x, y = (np.asarray(v, float) / 100 for v in line.get_data())
    assert x[0] == y[0] == 0
    assert x[-1] == y[-1] == 1
    area = float(((x[1:] - x[:-1]) * (y[1:] + y[:-1]) / 2).sum())
    assert area == pytest.approx(auroc(SCORES["msp"]["known"], SCORES["msp"]["letters"]), abs=2e-3)


def test_reliability_in_literals():
    known = {
        "labels": np.zeros(4, int),
        "prediction": np.array([0, 0, 1, 0]),
        "confidence": np.array([0.9, 0.92, 0.91, 0.5]),
    }
    figure = figures.reliability({"a": known}, bins=10)
    (line,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert line.get_xdata() == pytest.approx([0.5, 0.9, 0.915])  # 0.9 is of the bin that ends there
    assert line.get_ydata() == pytest.approx([1, 1, 0.5])


LOG = [{"epoch": e, "val_accuracy": 0.5, "w": 0.1 * e, "p_unknown_wrong": None} for e in range(4)]


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        (lambda: figures.roc({f"m{i}": SCORES for i in range(5)}, "msp"), ["m4", "letters", "unknown accepted"]),
        (lambda: figures.reliability({"plain": KNOWN}), ["plain", "ECE", "confidence"]),
        (
            lambda: figures.over_sparsity([("a", 90, "near", 80.0), ("a", 95, "near", 79.0)], "msp"),
            ["near unknown", "msp"],
        ),
        (lambda: figures.over_epochs({"a": LOG, "b": LOG[:2]}), ["w of the loss", "epoch"]),
        (lambda: figures.layers({"a": {"x.weight": 0.5, "y.weight": 0.1}}), ["weights kept", ">x<"]),
    ],
)
def test_pictures_for_a_page_are_text_that_a_browser_draws(figure, words):
    text = svg(figure(), "what it &amp; shows")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "what it & shows"
    for word in words:
        assert word in text.replace("<!-- ", ">"), word
    assert text == svg(figure(), "what it &amp; shows")  # the same each time


def test_what_a_log_does_not_have_is_not_drawn():
    text = svg(figures.over_epochs({"a": LOG}), "")
    assert "p(unknown)" not in text
