"""How the kept runs are named.

A network is named COLLECTION/TOPOLOGY/TRAINING, such as `cifar10/rigl95/moon`:

- COLLECTION: runs that were scored on the same images (`COLLECTIONS`), or `paper` and `paper-mnist` for the paper's
  numbers for CIFAR-10 and MNIST.
- TOPOLOGY: the topology and the sparsity in percent, `rigl95`, `set80`, `dense`. `rigl` or `set` alone is the mean
  over 80, 90, 95 and 99%, for each seed that has all four.
- TRAINING: a key of `moon.paper.recipes.TRAININGS` (`plain`, `control`, `logitnorm+vote`), or MOON with another
  parameter (`w_f=4`, `T_e=2`, `votes=5`). What else differs follows after commas (`moon-logitnorm,temperature=0.02`).
  `@300` means 300 epochs in place of the usual number, `+mirrored` the mean over each image and its mirror image.
  The preset `best-1` is `moon-logitnorm@300`, and `best-2` is `quick@300`.

The values of a network are those of all its seeds that are kept; `/s0` after the name selects seed 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from moon.paper.recipes import TRAININGS
from moon.recipe import Preset, Recipe, build, pick
from moon.recipe.defaults import options_of, quiet_epochs
from moon.recipe.presets import RATES
from moon.recipe.teachers import teacher_folders


@dataclass(frozen=True)
class Collection:
    """Runs that were scored on the same images.

    Attributes:
        folders: Their folders under results/.
        epochs: The usual number of epochs.
        options: Options that are usual here, though they are not the objectives' defaults.
    """

    folders: Sequence[str]
    epochs: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)


COLLECTIONS = {
    "cifar10": Collection(["cifar10", "cifar10-300"]),
    "cifar10-open": Collection(["cifar10-open"]),
    "cifar10-search": Collection(["cifar10-search"]),
    "cifar10-search-2": Collection(["cifar10-search-2"]),
    "tin100": Collection(["tin100"], options={"final": 2.0}),
    "tin100-64": Collection(["tin100-64"], epochs=50, options={"final": 2.0}),
    "mnist": Collection(["mnist"], options={"final": 0.01}),
    "mnist-lenet": Collection(["mnist-lenet"], options={"final": 0.01}),
    "demo": Collection(["demo"], epochs=30),
}
FOLDERS = [folder for each in COLLECTIONS.values() for folder in each.folders]

PAPER = {"paper": "cifar10", "paper-mnist": "mnist"}  # collections of the paper's numbers, and their data

_SHORT = {"final": "w_f", "quiet_epochs": "T_e"}
_NAMED_ELSEWHERE = (
    *("benchmark", "objective", "objective_options", "topology", "sparsity", "epochs", "seed", "vote_share", "net"),
    *("batch_size", "delta_t_steps", "precision", "outliers", "lr_start", "lr_end", "lr_hold_share"),
    *("teachers", "teachers_sha256"),
)


def network_name(recipe: Recipe, collection: Collection) -> str:
    """The TOPOLOGY/TRAINING of a run, as described at the top of this file."""
    topology = recipe.topology if recipe.topology == "dense" else f"{recipe.topology}{100 * recipe.sparsity:g}"
    usual = options_of(recipe.objective)
    usual |= {key: option for key, option in collection.options.items() if key in usual}
    derived = quiet_epochs(recipe.objective, recipe.epochs)
    chosen = {key: option for key, option in recipe.objective_options if option not in (usual[key], derived.get(key))}
    trainings = {name: preset for name, preset in TRAININGS.items() if not name.startswith("best")}
    names = [name for name, preset in trainings.items() if _fits(preset, recipe, chosen, usual)]
    name, *_ = [*names, recipe.objective]
    more = [] if names else [f"{_SHORT.get(key, key)}={_text(option)}" for key, option in chosen.items()]
    if not names and recipe.objective == "moon" and not chosen:
        more = [f"votes={round(recipe.vote_share * recipe.epochs)}"]
    if name == "moon" and len(more) == 1:
        name, more = more[0], []
    default = {key: each.default for key, each in Recipe.__dataclass_fields__.items() if key not in _NAMED_ELSEWHERE}
    if names:
        default |= {key: setting for key, setting in TRAININGS[name].settings.items() if key in default}
    more += [f"{key}={_text(getattr(recipe, key))}" for key in default if getattr(recipe, key) != default[key]]
    if recipe.teachers:
        more.append(f"teachers={len(teacher_folders(recipe.teachers))}")
    length = f"@{recipe.epochs}" if recipe.epochs != collection.epochs else ""
    return f"{topology}/{','.join([name, *more])}{length}"


def _fits(preset: Preset, recipe: Recipe, chosen: Mapping[str, Any], usual: Mapping[str, Any]) -> bool:
    """Whether objective, options, learning rates, vote and other settings of a recipe are those of a preset."""
    kind = pick("objective", recipe.objective)
    settings = {"rates": kind.rates, "vote_share": kind.vote_share} | dict(preset.settings)
    rates, _ = settings.pop("rates"), settings.pop("epochs", None)
    return (
        preset.objective == recipe.objective
        and {key: option for key, option in preset.options.items() if option != usual[key]} == chosen
        and replace(build.rate(recipe), warmup=0.0) == RATES[rates]
        and all(getattr(recipe, key) == setting for key, setting in settings.items())
    )


def _text(option: Any) -> str:
    return f"{option:g}" if isinstance(option, float) else str(option)
