from pathlib import Path

import numpy as np
from PIL import Image

from moon.results.answers import AnsweredImages, answered_images
from moon.results.plotting import COLOURS, save

PIXELS = np.arange(3 * 8 * 8, dtype=np.uint8).reshape(3, 8, 8, 1)
ROWS = [
    AnsweredImages("Digits", PIXELS, ["1", "unknown", "3"], [0.9, 0.012, 0.4], [True, False, True]),
    AnsweredImages("Letters", PIXELS[:2], ["unknown", "7"], [0.004, 0.5], [True, False]),
]


def test_each_image_has_its_answer_in_the_colour_of_right_or_wrong():
    figure = answered_images(ROWS, "title")
    shown = [[text.get_text() for text in axis.texts] for axis in figure.axes]
    assert shown == [
        ["1", "p = 0.900"],
        ["unknown ✗", "p = 0.012"],
        ["3", "p = 0.400"],
        ["unknown", "p = 0.004"],
        ["7 ✗", "p = 0.500"],
    ]
    right, wrong = COLOURS[:2]
    assert [axis.texts[0].get_color() for axis in figure.axes] == [right, wrong, right, right, wrong]
    assert [text.get_text() for text in figure.texts] == ["title", "Digits", "Letters"]


def test_no_texts_overlap():
    names = ["unknown", "a very long name", "8"]
    figure = answered_images([AnsweredImages("Heading", PIXELS, names, [0.5] * 3, [False] * 3)] * 2, "title")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in [*figure.texts, *(t for axis in figure.axes for t in axis.texts)]]
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[:i])


def test_colour_images_and_the_size_of_the_file(tmp_path: Path):
    colour = AnsweredImages("Pets", np.repeat(PIXELS, 3, 3), ["cat"] * 3, [0.5] * 3, [True] * 3)
    save(answered_images([colour]), tmp_path / "answers.png")
    with Image.open(tmp_path / "answers.png") as image:
        assert image.size == (492, 330)
