"""Warnings about networks that have learned nothing: when they are given, and with which advice."""

import numpy as np
import pytest

from moon.recipe import make_recipe
from moon.run.learning import early_epochs, warn_at_end, warn_early

LABELS = np.array([0, 1, 1, 2] * 25)  # half of the images are of class 1
TENTHS = np.arange(100) % 10


def advice(caplog) -> list[str]:
    """What the only warning recommends."""
    (text,) = caplog.messages
    caplog.clear()
    return text.partition("; what may help: ")[2].split(", ")


def recipe(**settings):
    return make_recipe("digits", "cross-entropy", **{"epochs": 50} | settings)


@pytest.mark.parametrize(("accuracy", "is_reported"), [(0.3, True), (0.5, True), (0.62, False)])
def test_a_network_that_learned_nothing_is_reported(accuracy, is_reported, caplog):
    warn_at_end(accuracy, LABELS, recipe(topology="static"))
    expected = (
        "the network has learned little or nothing: always predicting the most frequent class has an accuracy of "
        "50.0%; what may help: more epochs (--epochs), smaller batches (--batch-size), a warm-up (--warmup 5), a lower "
        "rate (--lr), less sparsity (--sparsity)"
    )
    assert caplog.messages == [expected] * is_reported


@pytest.mark.parametrize("counts", [(2, 2), (10, 1), (100, 3)])
def test_with_too_few_images_nothing_is_said_about_what_was_learned(counts, caplog):
    warn_at_end(1.0, np.repeat([0, 1], counts), recipe())
    assert not caplog.messages


@pytest.mark.parametrize(("accuracy", "count"), [(0.3, 100), (0.1, 40)])
def test_a_network_that_has_begun_to_learn_or_has_few_images_is_not_reported(accuracy, count, caplog):
    warn_early(accuracy, np.arange(count) % 10, 5, recipe())
    assert not caplog.messages


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"topology": "dense"}, ["a warm-up (--warmup 5)", "a lower rate (--lr)"]),
        ({"topology": "dense", "warmup": 25}, ["a lower rate (--lr)"]),
        ({"topology": "dense", "epochs": 1}, ["a lower rate (--lr)"]),  # a warm-up must be shorter than the run
        ({"topology": "dense", "warmup": 25, "lr_start": 1e-4}, ["a higher rate (--lr)"]),
        ({"sparsity": 0.8, "warmup": 25}, ["a lower rate (--lr)", "less sparsity (--sparsity)"]),
        (
            {"topology": "static", "pattern": "2:4", "warmup": 25},
            ["a lower rate (--lr)", "a pattern that keeps more weights (--pattern)"],
        ),
    ],
)
def test_advice_applies_to_the_recipe(settings, expected, caplog):
    run = recipe(**settings)
    warn_early(0.1, TENTHS, 5, run)
    assert advice(caplog) == expected
    warn_at_end(0.1, TENTHS, run)
    assert advice(caplog) == ["more epochs (--epochs)", "smaller batches (--batch-size)", *expected]


@pytest.mark.parametrize(
    ("epochs", "warmup", "early"),
    [(5, 0, None), (6, 0, 5), (100, 0, 10), (100, 20, 20), (21, 20, 20), (20, 19.5, None)],
)
def test_a_network_may_take_a_tenth_of_its_epochs_and_the_warm_up(epochs, warmup, early):
    assert early_epochs(recipe(epochs=epochs, warmup=warmup)) == early
