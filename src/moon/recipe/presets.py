"""Named learning-rate schedules and presets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from moon.recipe.parameters import Scalar
from moon.training import CosineRate

# OpenOOD's schedule, the MOON paper's, and the cyclic one of Sup-tickets.
RATES = {
    "plain": CosineRate(0.1, 1e-6),
    "moon": CosineRate(0.12, 0.008, hold=0.2),
    "tickets": CosineRate(0.1, 0.001, hold=0.1, cycles=3, peak=0.005),
}


@dataclass(frozen=True)
class Preset:
    """A preset: an objective, its options, and other settings of `make_recipe`.

    Args:
        objective: The name of the objective.
        options: Options of the objective.
        settings: Other keyword arguments of `make_recipe`.
        summary: A description in one line.

    Example:
        >>> from moon import Preset
        >>> Preset("moon", {"final": 2.0}, {"epochs": 300}).objective
        'moon'
    """

    objective: str
    options: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    summary: str = ""


PLAIN_SCHEDULE = {"rates": "plain", "vote_share": 0.0}
MOON_SCHEDULE = {"rates": "moon", "vote_share": 0.2}  # what MOON changes besides the loss
_BEST_2 = Preset(
    "rotpred+logitnorm",
    {"copies": 1},
    settings=MOON_SCHEDULE | {"augment": "trivial", "warmup": 5.0, "epochs": 300},
    summary="the best 95%-sparse network: LogitNorm, rotations, TrivialAugment, 300 epochs; score it with fisher",
)

_SMALL = {
    "rates": "plain", "vote_share": 0.2, "net": "resnet8", "sparsity": 0.8, "batch_size": 32, "augment": "cutout",
}  # fmt: skip

PRESETS: dict[str, Preset] = {
    "plain": Preset(
        "cross-entropy", settings=PLAIN_SCHEDULE, summary="cross-entropy with OpenOOD's learning rates and no vote"
    ),
    "control": Preset(
        "cross-entropy", settings=MOON_SCHEDULE, summary="cross-entropy with MOON's learning rates and vote"
    ),
    "without-lm": Preset("moon", {"schedule": "final", "final": 0.0}, summary="MOON without its loss, w = 0"),
    # The paper does not define "without auto-tuning"; these are the two possible readings.
    "without-at-final": Preset("moon", {"schedule": "final"}, summary="MOON with its final weight from the start"),
    "without-at-initial": Preset("moon", {"schedule": "initial"}, summary="MOON with its initial weight to the end"),
    "without-vt": Preset("moon", settings={"vote_share": 0.0}, summary="MOON without its vote"),
    "small": Preset(
        "cross-entropy",
        settings=_SMALL,
        summary="for up to 5,000 small images: a small residual network, 80% sparse, batches of 32, Cutout, a vote",
    ),
    "small-outliers": Preset(
        "outlier-exposure", settings=_SMALL, summary="small, trained with images of no known class as well (--outliers)"
    ),
    "best-1": Preset(
        "moon-logitnorm",
        settings={"epochs": 300},
        summary="MOON on normalised logits, 300 epochs; score it with fisher",
    ),
    "best-2": _BEST_2,
    "best": replace(_BEST_2, summary="the newest version of best, now best-2"),
    "quick": replace(
        _BEST_2,
        settings={**_BEST_2.settings, "epochs": 100},
        summary="best-2 in a third of its epochs, 100; score it with fisher",
    ),
}
