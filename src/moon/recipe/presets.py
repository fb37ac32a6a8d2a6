"""Trainings that have a name: an objective, its options, and what else belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moon.recipe.recipe import Scalar


@dataclass(frozen=True)
class Preset:
    """A training by name; `settings` are those of `build.recipe` that are not as ever."""

    objective: str
    options: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    line: str = ""  # what it is


PLAINS = {"rates": "plain", "vote_share": 0.0}
MOONS = {"rates": "moon", "vote_share": 0.2}  # what MOON has besides its loss

PRESETS: dict[str, Preset] = {
    "plain": Preset(
        "cross-entropy", settings=PLAINS, line="cross-entropy with OpenOOD's learning rates, without a vote"
    ),
    "control": Preset("cross-entropy", settings=MOONS, line="the plain loss with MOON's learning rates and vote"),
    "without-lm": Preset("moon", {"schedule": "final", "final": 0.0}, line="MOON without its loss, w = 0"),
    # "Without auto-tuning" is not defined in the paper; these are its two readings.
    "without-at-final": Preset("moon", {"schedule": "final"}, line="MOON with its last weight throughout"),
    "without-at-initial": Preset("moon", {"schedule": "initial"}, line="MOON with its first weight throughout"),
    "without-vt": Preset("moon", settings={"vote_share": 0.0}, line="MOON without its vote"),
    "best": Preset(
        "moon-logitnorm",
        settings={"epochs": 300},
        line="the best 95%-sparse network found: MOON on normalised logits, 300 epochs; to be scored with fisher",
    ),
}
