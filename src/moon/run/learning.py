"""Warnings about a network that has learned nothing, with advice that applies to its recipe."""

from __future__ import annotations

import logging
from collections import Counter
from math import ceil

from numpy.typing import NDArray

from moon.recipe import Recipe

_log = logging.getLogger(__name__)
_FEW = 50  # with fewer validation images, one that has begun to learn is often no better than chance
_SMALL_BATCH = 16
_LOW_RATES = {"sgd": 0.001, "adamw": 0.00001}  # a hundredth of the usual ones


def early_epochs(recipe: Recipe) -> int | None:
    """After how many epochs a network should have begun to learn: a tenth of the run, at least 5 and the warm-up.

    None if the run is not longer.
    """
    early = max(5, recipe.epochs // 10, ceil(recipe.warmup))
    return early if early < recipe.epochs else None


def warn_early(accuracy: float, labels: NDArray, done: int, recipe: Recipe) -> None:
    """Log a warning if a network has not begun to learn, long before its run ends.

    With few validation images nothing is said.
    """
    if len(labels) >= _FEW and (constant := chance(accuracy, labels)) is not None:
        _log.warning(
            "after %d of %d epochs the network has learned nothing yet: its validation accuracy is %.1f%%, and always "
            "predicting the most frequent class has %.1f%%; what may help: %s",
            done, recipe.epochs, 100 * accuracy, 100 * constant, ", ".join(_remedies(recipe)),
        )  # fmt: skip


def warn_at_end(accuracy: float, labels: NDArray, recipe: Recipe) -> None:
    """Log a warning if a trained network is not clearly better than always predicting the most frequent class."""
    if (constant := chance(accuracy, labels)) is not None:
        advice = ["more epochs (--epochs)"]
        advice += ["smaller batches (--batch-size)"] if recipe.batch_size > _SMALL_BATCH else []
        _log.warning(
            "the network has learned little or nothing: always predicting the most frequent class has an accuracy of "
            "%.1f%%; what may help: %s",
            100 * constant, ", ".join([*advice, *_remedies(recipe)]),
        )  # fmt: skip


def chance(accuracy: float, labels: NDArray) -> float | None:
    """The accuracy of always predicting the most frequent class, if a network is not clearly better; else None."""
    constant = max(Counter(labels.tolist()).values()) / len(labels)
    limit = constant + 2 * (constant * (1 - constant) / len(labels)) ** 0.5
    return constant if accuracy <= limit < 1 else None  # with a limit of 1 there are too few images to tell


def _remedies(recipe: Recipe) -> list[str]:
    """What may help, of what this recipe leaves room for."""
    found = []
    usual = min(5, recipe.epochs // 2)  # a warm-up must be shorter than the run
    is_low = recipe.lr_start < _LOW_RATES[recipe.optimizer]
    if is_low:
        pass  # a warm-up makes the rate lower still
    elif recipe.warmup < usual:
        found.append(f"a {'longer ' if recipe.warmup else ''}warm-up (--warmup {usual})")
    elif 0 < 2 * recipe.warmup < recipe.epochs:
        found.append("a longer warm-up (--warmup)")
    found.append(f"a {'higher' if is_low else 'lower'} rate (--lr)")
    if recipe.pattern:  # which determines the sparsity
        found.append("a pattern that keeps more weights (--pattern)")
    elif recipe.sparsity:
        found.append("less sparsity (--sparsity)")
    return found
