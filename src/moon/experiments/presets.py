"""Trainings that have a name: an objective, its options, and what else belongs to it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moon.experiments.recipe import Scalar


@dataclass(frozen=True)
class Preset:
    """A training by name; `settings` are those of `build.recipe` that are not as ever."""

    line: str  # what it is
    objective: str
    options: Mapping[str, Scalar] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)


MOONS = {"rates": "moon", "vote_share": 0.2}  # what MOON has besides its loss

PRESETS: dict[str, Preset] = {
    "plain": Preset("cross-entropy with OpenOOD's learning rates", "cross-entropy"),
    "control": Preset("the plain loss with MOON's learning rates and vote", "cross-entropy", settings=MOONS),
    "without-lm": Preset("MOON without its loss, w = 0", "moon", {"schedule": "final", "final": 0.0}),
    # "Without auto-tuning" is not defined in the paper; these are its two readings.
    "without-at-final": Preset("MOON with its last weight throughout", "moon", {"schedule": "final"}),
    "without-at-initial": Preset("MOON with its first weight throughout", "moon", {"schedule": "initial"}),
    "without-vt": Preset("MOON without its vote", "moon", settings={"vote_share": 0.0}),
}
