"""Figures of runs: each is drawn in the requested format, with the right numbers and labels."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from PIL import Image

from moon.metrics import auroc
from moon.results import figures
from moon.results.plotting import save, svg

RNG = np.random.default_rng(0)
SCORES = {"msp": {"known": RNG.normal(1, 1, 200), "letters": RNG.normal(0, 1, 100)}}
KNOWN = {
    "labels": np.arange(60) % 3,
    "prediction": np.arange(60) % 2,
    "confidence": np.linspace(0.4, 1, 60, dtype=np.float32),
}
LOG = [{"epoch": e, "val_accuracy": 0.5, "w": 0.1 * e, "p_unknown_wrong": None} for e in range(4)]


def test_score_histograms_have_one_panel_per_method(tmp_path):
    widths = []
    for count in (1, 2):
        path = tmp_path / f"{count}.png"
        save(figures.score_histograms({f"method {i}": SCORES for i in range(count)}, "msp", "title"), path)
        with Image.open(path) as image:
            widths.append(image.width)
            assert len(image.convert("RGB").getcolors(10**6)) > 20
    assert widths == [750, 1440]


def test_percentiles_among_the_known():
    known = np.array([1.0, 2.0, 2.0, 4.0])
    assert figures.known_percentile(known, np.array([0.0, 2.0, 3.0, 9.0])).tolist() == [0.0, 50.0, 75.0, 100.0]


def test_the_area_under_the_roc_curve_is_the_auroc():
    figure = figures.roc_curves({"a": SCORES}, "msp")
    (line,) = [line for line in figure.axes[0].lines if len(line.get_xdata()) > 2]
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
    figure = figures.reliability_diagram({"a": known}, bins=10)
    (line,) = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert line.get_xdata() == pytest.approx([0.5, 0.9, 0.915])  # 0.9 belongs to the bin that ends there
    assert line.get_ydata() == pytest.approx([1, 1, 0.5])


@pytest.mark.parametrize(
    ("figure", "labels"),
    [
        (lambda: figures.roc_curves({f"m{i}": SCORES for i in range(5)}, "msp"), ["m4", "letters", "unknown accepted"]),
        (lambda: figures.reliability_diagram({"plain": KNOWN}), ["plain", "ECE", "confidence"]),
        (
            lambda: figures.auroc_over_sparsity([("a", 90, "near", 80.0), ("a", 95, "near", 79.0)], "msp"),
            ["near unknown", "msp"],
        ),
        (lambda: figures.training_curves({"a": LOG, "b": LOG[:2]}), ["w of the loss", "epoch"]),
        (lambda: figures.layer_densities({"a": {"x.weight": 0.5, "y.weight": 0.1}}), ["non-zero weights", ">x<"]),
    ],
)
@pytest.mark.slow
def test_inline_figures_are_reproducible_svg_with_text(figure, labels):
    text = svg(figure(), "what it & shows")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert root.get("aria-label") == "what it & shows"
    for label in labels:
        assert label in text.replace("<!-- ", ">"), label
    assert text == svg(figure(), "what it & shows")


def test_values_that_are_not_in_the_log_are_not_drawn():
    assert "p(unknown)" not in svg(figures.training_curves({"a": LOG}), "")
    nothing = [{"epoch": 0, "loss": 1.0}]
    assert "epoch" not in svg(figures.training_curves({"a": nothing}), "")
