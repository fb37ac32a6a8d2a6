"""Drawing does not change the matplotlib settings of the host program."""

import sys

import matplotlib
import numpy as np
import pytest

from moon.paper.figures import draw
from moon.paper.items import items
from moon.paper.spec import Scale
from moon.paper.table import PaperTable
from moon.results.figures import layer_densities, score_histograms
from moon.results.plotting import DIGEST, data_digest, panels, save, svg


def settings():
    return dict(matplotlib.rcParams.copy())


@pytest.mark.slow
def test_drawing_and_saving_do_not_change_settings(tmp_path):
    before = settings()
    scores = {"msp": {"known": np.arange(20.0), "letters": np.arange(10.0)}}
    save(score_histograms({"a": scores}, "msp"), tmp_path / "a.png", tmp_path / "a.svg")
    svg(layer_densities({"a": {"x": 0.5}}), "label")
    table = PaperTable.read(items()["figure4"], Scale({"cifar10": "digits", "cifar100": "digits"}), tmp_path, tmp_path)
    draw(table, tmp_path, tmp_path / "figure4")
    assert settings() == before


def test_the_backend_does_not_change_and_pyplot_is_not_imported(monkeypatch, tmp_path):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = dict.__getitem__(matplotlib.rcParams, "backend")  # without choosing one, as rcParams["backend"] would
    figure = layer_densities({"a": {"x": 0.5}})
    assert svg(figure, "label").startswith("<svg")
    save(figure, tmp_path / "a.png")
    assert dict.__getitem__(matplotlib.rcParams, "backend") is before
    assert "matplotlib.pyplot" not in sys.modules


def test_labels_are_escaped():
    assert 'aria-label="&lt;a&gt; &amp; &quot;b&quot;"' in svg(panels(1, 1)[0], '<a> & "b"')


def test_an_svg_file_contains_the_digest_of_its_data(tmp_path):
    def drawn(top=3.0, title="title", **style):
        figure, axes = panels(1, 2)
        axes[0, 0].plot([1, 2], [1, top], label="line", **style)
        axes[0, 0].set_title(title)
        axes[0, 1].bar([1], [top])
        axes[0, 1].fill_between([1, 2], [0, 0], [1, top])
        return figure

    save(drawn(), tmp_path / "a.svg")
    assert f"{DIGEST} {data_digest(drawn())}" in (tmp_path / "a.svg").read_text()
    assert data_digest(drawn(color="red", lw=3)) == data_digest(drawn())  # the style is not data
    assert data_digest(drawn(top=3 + 1e-9)) == data_digest(drawn())  # nor is rounding
    assert len({data_digest(figure) for figure in (drawn(), drawn(top=3.01), drawn(title="other"))}) == 3
