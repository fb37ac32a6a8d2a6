"""`Recipe`: everything that determines the result of a run, as scalars with units in their names."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, fields
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any, get_type_hints

from moon.data.benchmarks import AUGMENTATIONS
from moon.errors import DamagedCheckpoint
from moon.recipe.parameters import Parameter, Scalar, detail, setting
from moon.records import read_json
from moon.suggest import did_you_mean

_OWN = "the objective's"
_KINDS = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}
_CHOICES = {
    "precision": ("float32", "bfloat16"), "optimizer": ("sgd", "adamw"), "first_mask": ("random", "magnitude"),
    "augment": AUGMENTATIONS,
}  # fmt: skip
MAX_EPOCHS = 1_000_000  # far beyond any schedule; a mistyped number must not start a run that never ends

# Fields whose values are always part of a run's name. A field that is added later is part of the name only where it
# differs from its default, so that adding one does not rename existing runs.
_NAMED = frozenset((
    "benchmark", "net", "objective", "objective_options", "outliers", "topology", "sparsity", "allocation", "pattern",
    "drop_fraction", "delta_t_steps", "t_end_share", "epochs", "batch_size", "lr_start", "lr_end", "lr_hold_share",
    "lr_cycles", "lr_peak", "momentum", "nesterov", "weight_decay", "vote_share", "precision", "seed",
))  # fmt: skip
_UNNAMED = frozenset(("pretrained", "teachers"))  # where a file is does not matter, only what it contains
_OPTIONS = ("objective_options", "topology_options")


def _either(choices: tuple[str, ...]) -> str:
    """The choices as words: a, b or c."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A complete description of a run: the same recipe gives the same result on the same software and machine.

    Use `make_recipe` to create one: it fills in what the benchmark, objective and topology determine. Each field is
    declared once; the declaration makes it a command-line flag of `moon train`, an axis of `moon grid` and a TOML key.

    Example:
        >>> from moon import make_recipe
        >>> recipe = make_recipe("digits", objective="moon", sparsity=0.9, epochs=20)
        >>> recipe.name
        'digits-rigl90-moon-s0-551d3732'
    """

    benchmark: str = detail("the benchmark: the known set and its unknown sets")
    net: str = setting("net", "the network", otherwise="the benchmark's", table="net")
    width: float = setting(
        "width",
        "multiplies the channels of our ResNets, or of a net with an argument width",
        default=1.0,
        metavar="FACTOR",
    )
    pretrained: str = setting(
        "pretrained", "weights to start from, safetensors or a state_dict", default="", otherwise="none", metavar="FILE"
    )
    pretrained_sha256: str = detail("the SHA-256 of the weights to start from", default="")
    objective: str = setting("objective", "the training objective", otherwise="moon", table="objective")
    objective_options: tuple[tuple[str, Scalar], ...] = detail("options of the objective", default=())
    outliers: str = setting(
        "outliers", "a set of unknown images to train with, for objectives that need one", default="", metavar="SET"
    )
    augment: str = setting("augment", f"augmentation besides crop and flip: {_either(AUGMENTATIONS)}", default="none")
    teachers: str = setting(
        "teachers", "run folders of trained networks to learn from, for distill", default="", metavar="RUN[,RUN...]"
    )
    teachers_sha256: str = detail("the SHA-256 of the recipes and weights of the teachers", default="")
    topology: str = setting("topology", "the sparse training method", default="rigl", table="topology")
    topology_options: tuple[tuple[str, Scalar], ...] = detail("options of the topology", default=())
    sparsity: float = setting(
        "sparsity", "fraction of weights that are zero", default=0.95, otherwise="0.95, or the pattern's"
    )
    allocation: str = setting("allocation", "how sparsity is divided among layers", default="erk", table="allocation")
    pattern: str = setting(
        "pattern", "where in a layer weights may be non-zero", default="", otherwise="anywhere", table="pattern"
    )
    first_mask: str = setting(
        "first_mask",
        "weights that the first masks keep: random, or magnitude for the largest",
        default="random",
        otherwise="magnitude with --pretrained",
    )
    drop_fraction: float = setting(
        "drop", "fraction of weights replaced at the first mask update", default=0.3, metavar="FRACTION"
    )
    delta_t_steps: int = setting("delta_t", "steps between mask updates", default=100, metavar="STEPS", minimum=1)
    t_end_share: float = setting("t_end", "fraction of the run in which masks change", default=0.7, metavar="FRACTION")
    epochs: int = setting("epochs", "training epochs", default=100, minimum=1)
    batch_size: int = setting("batch_size", "images per batch", default=128, minimum=1)
    lr_start: float = setting("lr", "initial learning rate", otherwise="that of the learning-rate schedule")
    lr_end: float = detail("final learning rate")
    lr_hold_share: float = detail("fraction of the run, at its end, during which lr_end is held")
    lr_cycles: int = detail("learning-rate cycles in the held part, each ending with a vote", default=0)
    lr_peak: float = detail("highest learning rate of the cycles", default=0.0)
    warmup: float = setting(
        "warmup", "epochs during which the learning rate rises from 0", default=0.0, metavar="EPOCHS"
    )
    backbone_lr_factor: float = setting(
        "backbone_lr_factor",
        "multiplies the rate of all layers but the classifier",
        default=1.0,
        metavar="FACTOR",
    )
    optimizer: str = setting("optimizer", "the optimizer: sgd or adamw", default="sgd")
    momentum: float = detail("momentum of SGD, beta1 of AdamW", default=0.9)
    nesterov: bool = detail("whether SGD uses Nesterov momentum", default=True)
    weight_decay: float = setting("weight_decay", "weight decay", default=5e-4, otherwise="0.0005, with AdamW 0.05")
    vote_share: float = setting(
        "vote",
        "fraction of epochs, at the end, whose weights are averaged; 0: none",
        otherwise=_OWN,
        metavar="FRACTION",
    )
    precision: str = setting("precision", "precision of the forward pass, float32 or bfloat16", default="float32")
    seed: int = setting("seed", "seed of all random numbers", default=0)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not isfinite(value):
                raise ValueError(f"{item.name} must be finite, not {value}")
        if self.weight_decay < 0 or not 0 <= self.momentum < 1:
            raise ValueError(f"weight_decay={self.weight_decay} must be at least 0, momentum={self.momentum} in [0, 1)")
        for name, choices in _CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name} must be {_either(choices)}, not {value}{did_you_mean(str(value), choices)}")
        if isinstance(self.width, bool) or not isinstance(self.width, int | float):
            raise ValueError(f"width must be a number, not {self.width!r}")
        object.__setattr__(self, "width", float(self.width))  # 2 and 2.0 are the same run
        if self.width <= 0:
            raise ValueError(f"width must be above 0, not {self.width:g}")
        if self.epochs < 1 or self.batch_size < 1:
            raise ValueError(f"epochs={self.epochs} and batch_size={self.batch_size} must be at least 1")
        if not 0 <= self.warmup < self.epochs:
            raise ValueError(f"warmup={self.warmup:g} epochs must be at least 0 and below epochs={self.epochs}")
        if self.epochs > MAX_EPOCHS:
            raise ValueError(f"epochs={self.epochs:,} must be at most {MAX_EPOCHS:,} (epochs)")
        for name in ("backbone_lr_factor", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")
        for name in ("t_end_share", "vote_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must be in [0, 1], not {getattr(self, name)}")
        for name in _OPTIONS:  # a mapping is accepted as well
            object.__setattr__(self, name, tuple(sorted(dict(getattr(self, name)).items())))

    @property
    def vote_from(self) -> int | None:
        """The first epoch that votes, counted from 0; None without a vote."""
        if not self.vote_share:
            return None
        return self.epochs - max(1, round(self.vote_share * self.epochs)) + self.vote_every - 1

    @property
    def vote_every(self) -> int:
        """Epochs between votes: the length of a learning-rate cycle, or 1 without cycles."""
        return max(1, round(self.lr_hold_share * self.epochs) // self.lr_cycles) if self.lr_cycles else 1

    def to_json(self) -> dict[str, Any]:
        """All fields, as `recipe.json` stores them."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return values | {name: dict(values[name]) for name in _OPTIONS}

    @classmethod
    def load(cls, path: Path) -> Recipe:
        """Read a `recipe.json`; fields that it does not have take their defaults."""
        try:
            found = read_json(path)
            _check_types(found)
            return cls(**found)
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(f"{path.parent}: contains no {path.name}; is this a run folder?") from None
        except (TypeError, ValueError) as error:
            raise DamagedCheckpoint(f"{path}: is not a recipe of this version ({error})") from error

    @property
    def name(self) -> str:
        """A readable name that is different for every recipe; run folders have this name."""
        sparsity = f"{self.topology}{100 * self.sparsity:g}" if self.topology != "dense" else "dense"
        return f"{self.benchmark}-{sparsity}-{self.objective}-s{self.seed}-{self.digest[:8]}"

    @property
    def digest(self) -> str:
        """The SHA-256 of the recipe; the name ends in its first digits."""
        defaults = {item.name: item.default for item in fields(self)} | {name: {} for name in _OPTIONS}
        named = {key: value for key, value in self.to_json().items() if key not in _UNNAMED}
        covered = {key: value for key, value in named.items() if key in _NAMED or value != defaults[key]}
        return hashlib.sha256(json.dumps(covered, sort_keys=True).encode()).hexdigest()


Recipe.__doc__ = f"{Recipe.__doc__}\n    Args:\n" + "".join(
    f"        {item.name}: {item.metadata['help'][0].upper()}{item.metadata['help'][1:]}.\n" for item in fields(Recipe)
)


@cache
def _types() -> dict[str, Any]:
    """The types of the fields of `Recipe`."""
    return get_type_hints(Recipe)


def _check_types(found: Any) -> None:
    """Raise a ValueError if the content of a `recipe.json` has another key, or a value of another type."""
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    for name, value in found.items():
        if (kind := _types().get(name)) is None:
            raise ValueError(f"it has the setting '{name}', which this version of moon does not know")
        if kind in _KINDS and type(value) not in ((int, float) if kind is float else (kind,)):
            raise ValueError(f"{name} is {value!r}, expected {_KINDS[kind]}")


def _declared() -> dict[str, Parameter]:
    """The parameters that the fields of `Recipe` declare, and the two that stand for several fields."""
    types = _types()
    shorthands = (
        Parameter("benchmark", "benchmark", str, "the known set and its unknown sets"),
        Parameter(
            "preset", "preset", str, "a named set of settings, which other flags override", "none", table="preset"
        ),
        Parameter("rates", "rates", str, "learning-rate schedule", _OWN, table="rates"),
    )
    declared = [
        Parameter(setting=item.name, type=types[item.name], **item.metadata["parameter"])
        for item in fields(Recipe)
        if "parameter" in item.metadata
    ]
    return {parameter.name: parameter for parameter in (*shorthands, *declared)}


PARAMETERS = _declared()  # every parameter that users can set, by its name on the command line and in TOML files
