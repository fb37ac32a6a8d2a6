import numpy as np
from PIL import Image

from moon.experiments.figures import known_percentile, score_histograms


def test_the_picture_has_a_panel_a_method(tmp_path):
    chance = np.random.default_rng(0)
    scores = {"msp": {"known": chance.normal(1, 1, 200), "letters": chance.normal(0, 1, 100)}}
    for count in (1, 2):
        path = tmp_path / f"{count}.png"
        score_histograms({f"method {i}": scores for i in range(count)}, "msp", path, "title")
        with Image.open(path) as image:
            assert image.width == round(5.2 * count * 150)
            assert len(image.convert("RGB").getcolors(10**6)) > 20


def test_percentiles_among_the_known():
    known = np.array([1.0, 2.0, 2.0, 4.0])
    assert known_percentile(known, np.array([0.0, 2.0, 3.0, 9.0])).tolist() == [0.0, 50.0, 75.0, 100.0]
