"""One frozen recipe per run: everything that decides its result, as scalars with units in their names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from math import isfinite
from pathlib import Path
from typing import Any

from moon.training import CosineRate, DamagedCheckpoint

Scalar = int | float | str | bool

# The plain recipe is OpenOOD's, MOON's the paper's, that with cycles Sup-tickets'.
RATES = {
    "plain": CosineRate(0.1, 1e-6),
    "moon": CosineRate(0.12, 0.008, hold=0.2),
    "tickets": CosineRate(0.1, 0.001, hold=0.1, cycles=3, peak=0.005),
}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A run, complete: the same recipe gives the same result on the same software and machine."""

    benchmark: str
    net: str
    objective: str
    objective_options: tuple[tuple[str, Scalar], ...] = ()
    outliers: str = ""  # a set of unknown images to train with, for the objectives that need one
    topology: str = "rigl"
    sparsity: float = 0.95
    allocation: str = "erk"
    pattern: str = ""  # "2:4" keeps two of every four neighbours
    drop_fraction: float = 0.3
    delta_t_steps: int = 100
    t_end_share: float = 0.7  # of the run's steps
    epochs: int = 100
    batch_size: int = 128
    lr_start: float
    lr_end: float
    lr_hold_share: float  # of the run's steps
    lr_cycles: int = 0  # in the held part, each ending with a vote
    lr_peak: float = 0.0  # of the cycles
    momentum: float = 0.9
    nesterov: bool = True
    weight_decay: float = 5e-4
    vote_share: float  # of the run's epochs, at its end; 0: no vote
    precision: str = "float32"
    seed: int = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{item.name} must be a finite number, not {value}")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"weight_decay={self.weight_decay} must be at least 0, momentum={self.momentum} in [0, 1)")
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs={self.epochs} and batch_size={self.batch_size} must be at least 1")
        if self.seed < 0:
            raise ValueError(f"seed must be at least 0, not {self.seed}")
        for name, flag in (("t_end_share", "--t-end"), ("vote_share", "--vote")):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({flag}) must be in [0, 1], not {getattr(self, name)}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision must be float32 or bfloat16, not {self.precision}")
        pairs = dict(self.objective_options)  # a mapping will do as well
        object.__setattr__(self, "objective_options", tuple(sorted(pairs.items())))

    @property
    def vote_from(self) -> int | None:
        """The first epoch that votes, counted from 0."""
        if not self.vote_share:
            return None
        return self.epochs - max(1, round(self.vote_share * self.epochs)) + self.vote_every - 1

    @property
    def vote_every(self) -> int:
        """Epochs from one vote to the next: the length of a cycle, where there are cycles."""
        return max(1, round(self.lr_hold_share * self.epochs) // self.lr_cycles) if self.lr_cycles else 1

    def to_json(self) -> dict[str, Any]:
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {"objective_options": dict(self.objective_options)}

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read `recipe.json`."""
        try:
            return cls(**json.loads(path.read_text()))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{path.parent}: no {path.name} in it; is this a run folder?") from None
        except (TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"{path}: is no recipe of this version ({error})") from error

    @property
    def name(self) -> str:
        """Readable, and different for every recipe."""
        digest = hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()[:8]
        sparsity = f"{self.topology}{100 * self.sparsity:g}" if self.topology != "dense" else "dense"
        return f"{self.benchmark}-{sparsity}-{self.objective}-s{self.seed}-{digest}"
