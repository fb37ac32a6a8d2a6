"""The runs that are kept under results/, by name, and what was measured on them.

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

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import isclose
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data.archives import read_npz
from moon.paper.published import published
from moon.paper.recipes import TRAININGS
from moon.paper.spec import SPARSITIES, Measurement
from moon.recipe import Preset, Recipe, build, pick
from moon.recipe.defaults import options_of, quiet_epochs
from moon.recipe.presets import RATES
from moon.recipe.teachers import teacher_folders
from moon.results.collect import Run, collect
from moon.score.files import KNOWN, read_summary
from moon.suggest import did_you_mean


@dataclass(frozen=True)
class Collection:
    """Runs that were scored on the same images.

    Attributes:
        folders: Their folders under results/.
        epochs: The usual number of epochs.
        options: Options that are usual here, though they are not the objectives' defaults.
    """

    folders: tuple[str, ...]
    epochs: int = 100
    options: Mapping[str, Any] = field(default_factory=dict)


COLLECTIONS = {
    "cifar10": Collection(("cifar10", "cifar10-300")),
    "cifar10-open": Collection(("cifar10-open",)),
    "cifar10-search": Collection(("cifar10-search",)),
    "cifar10-search-2": Collection(("cifar10-search-2",)),
    "tin100": Collection(("tin100",), options={"final": 2.0}),
    "tin100-64": Collection(("tin100-64",), epochs=50, options={"final": 2.0}),
    "mnist": Collection(("mnist",), options={"final": 0.01}),
    "mnist-lenet": Collection(("mnist-lenet",), options={"final": 0.01}),
    "demo": Collection(("demo",), epochs=30),
}
# Runs of version 0.1 that only the log describes, and measurements of time and size.
OTHER_FOLDERS = ("bench", "pack", "cifar10-95", "cifar10-95-rivals", "demo-moon")

# The detector of `best-1` was chosen in the search, with a network that is not tested (docs/results/best.md).
CHOSEN_IN_SEARCH = {"rigl95/moon-logitnorm@300": "fisher"}

PAPER = {"paper": "cifar10", "paper-mnist": "mnist"}  # collections of the paper's numbers, and their data

_SHORT = {"final": "w_f", "quiet_epochs": "T_e"}
_NAMED_ELSEWHERE = (
    *("benchmark", "objective", "objective_options", "topology", "sparsity", "epochs", "seed", "vote_share", "net"),
    *("batch_size", "delta_t_steps", "precision", "outliers", "lr_start", "lr_end", "lr_hold_share"),
    *("teachers", "teachers_sha256"),
)


class Kept:
    """The kept runs under a folder; each collection is read when it is first used.

    Args:
        results: The folder results/.
    """

    def __init__(self, results: Path) -> None:
        self.results = results

    def unlisted(self) -> list[str]:
        """The folders that contain runs and belong to no collection."""
        listed = {name for collection in COLLECTIONS.values() for name in collection.folders} | {*OTHER_FOLDERS}
        found = {path.parent.parent.name for path in self.results.glob("*/*/recipe.json")}
        return sorted(found - listed)

    @cached_property
    def _collections(self) -> dict[str, dict[str, dict[int, Run]]]:
        return {}

    def collection(self, name: str) -> dict[str, dict[int, Run]]:
        """The runs of a collection, by TOPOLOGY/TRAINING and seed."""
        if name not in self._collections:
            if name not in COLLECTIONS:
                raise ValueError(f"there is no collection '{name}'{did_you_mean(name, [*COLLECTIONS, *PAPER])}")
            self._collections[name] = self._read(COLLECTIONS[name])
        return self._collections[name]

    def _read(self, collection: Collection) -> dict[str, dict[int, Run]]:
        networks: dict[str, dict[int, Run]] = {}
        images: dict[str, Any] | None = None
        for folder in collection.folders:
            if not (self.results / folder).is_dir():
                raise ValueError(f"results/{folder} is missing; its tables cannot be made without it")
            runs, unreadable = collect([self.results / folder])
            if unreadable:
                raise ValueError(unreadable[0])
            for run in runs:
                shown = {group: run.summary.get(group) for group in ("near", "far", "sha256")}
                if (images := images or shown) != shown:
                    raise ValueError(f"results/{folder}/{run.folder.name} was scored on other images than the rest")
                key = network_name(run.recipe, collection)
                variants = {key: run.summary, f"{key}+mirrored": read_summary(run.folder / "mirrored")}
                for name, summary in variants.items():
                    if summary is not None:
                        seeds = networks.setdefault(name, {})
                        if run.recipe.seed in seeds:
                            other = seeds[run.recipe.seed].folder
                            raise ValueError(f"{run.folder} and {other} have the same name, {name}, and seed")
                        seeds[run.recipe.seed] = replace(run, summary=summary)
        return {name: dict(sorted(seeds.items())) for name, seeds in networks.items()}

    def runs(self, network: str) -> dict[int, Run]:
        """The runs of a network by seed; none if the name is valid but nothing is kept."""
        name, _, rest = network.partition("/")
        topology, _, rest = rest.partition("/")
        training, _, seed = rest.partition("/s")
        found = self.collection(name).get(f"{topology}/{training}", {})
        return {int(seed): found[int(seed)]} if seed else found

    def has(self, network: str) -> bool:
        """Whether any run of a network is kept, or the paper has numbers for it."""
        return any(self.values(network, metric) for metric in ("accuracy", "msp near"))

    def values(self, network: str, metric: str) -> dict[int, float]:
        """The values of a metric by seed, in the units that tables show.

        Args:
            network: A network, as described at the top of this file.
            metric: `DETECTOR near`, `DETECTOR far` or `DETECTOR SET` (AUROC in percent; with `fpr95` at the end the
                share of unknown images that are accepted if 95% of the known ones are); `accuracy` (percent), `ece`,
                `ece-scaled`, `temperature`, `training-flops`, `classifier-density`; `p-unknown correct`, `p-unknown
                wrong` or `p-unknown SET`. Detectors and p-unknown that depend on the scale of the logits use the
                fitted temperature if logits are normalised; with `:unscaled` after the name they use T = 1. The
                detector `chosen` is the one that `chosen` returns.

        Returns:
            The values; seeds for which the metric was not measured are left out.
        """
        collection, _, rest = network.partition("/")
        topology, _, rest = rest.partition("/")
        if collection in PAPER:
            return _paper(PAPER[collection], topology, rest, metric)
        if topology in ("rigl", "set"):
            parts = [self.values(f"{collection}/{topology}{100 * s:g}/{rest}", metric) for s in SPARSITIES]
            return {seed: mean(part[seed] for part in parts) for seed in parts[0] if all(seed in p for p in parts)}
        if metric.startswith("chosen "):
            if (detector := self.chosen(network)) is None:
                return {}
            metric = metric.replace("chosen", detector, 1)
        found = {seed: value(run, metric) for seed, run in self.runs(network).items()}
        return {seed: number for seed, number in found.items() if number is not None}

    def by_seed(self, network: str) -> Callable[[str], list[float]]:
        """A function that returns the values of a metric of a network, those of its seeds in order."""
        return lambda metric: list(self.values(network, metric).values())

    def levels(self, run: Run) -> dict[str, NDArray]:
        """The levels of the scores of every image, `DETECTOR/SET`, and `correct`, a number for each known image.

        Raises:
            ValueError: If they are not kept, or only those of a repeated run, which has the same name.
        """
        path = self.results / "scores" / f"{run.folder.name}.npz"
        found, _ = read_npz(path)
        found["correct"] = np.unpackbits(found["correct"])[: run.summary["images"][KNOWN]]
        model = found.pop("model_sha256", None)  # older files have none
        is_same = isclose(found["correct"].mean(), run.summary["known"]["accuracy"], abs_tol=1e-6)
        if not is_same or (model is not None and model.tobytes().hex() != run.result["model_sha256"]):
            raise ValueError(f"{path}: has the scores of another run than {run.folder}, though of the same name")
        return found

    def chosen(self, network: str) -> str | None:
        """The detector that is best for a network on validation images, None if none was chosen.

        It has the highest mean of near and far AUROC over all seeds that have a `choice.json` (`choose.py`).
        """
        if network.partition("/")[2] in CHOSEN_IN_SEARCH:
            return CHOSEN_IN_SEARCH[network.partition("/")[2]]
        files = [run.folder / "choice.json" for run in self.runs(network).values()]
        choices = [json.loads(path.read_text(encoding="utf-8")) for path in files if path.exists()]
        if not choices:
            return None

        def score(detector: str) -> float:
            found = [each["auroc"][detector] for each in choices]
            if any("refused" in auroc for auroc in found):
                return 0.0
            groups = [each[group] for each in choices for group in ("near", "far")]
            values = [auroc for auroc in found for _ in ("near", "far")]
            return mean(mean(auroc[name] for name in group) for auroc, group in zip(values, groups, strict=True))

        return max(choices[0]["auroc"], key=score)


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


def value(run: Run, metric: str) -> float | None:
    """One metric of a run, in the units that tables show; None if it was not measured."""
    summary, (kind, _, part) = run.summary, metric.partition(" ")
    if kind in ("accuracy", "ece") and not part:
        return summary["known"][kind] * (100 if kind == "accuracy" else 1)
    if kind in ("ece-scaled", "temperature") and not part:
        return summary.get("known_scaled", {}).get(kind.removesuffix("-scaled"))
    if metric == "training-flops":
        return run.result["flops"]["training"]
    if metric == "classifier-density":
        return run.result["layer_density"]["fc.weight"]
    if kind in ("p-unknown", "p-unknown:unscaled"):
        return _p_unknown(summary, summary.get(kind.replace("-", "_").replace(":", "_"), {}), part)
    found = summary["detectors"].get(kind, {})
    part, _, which = part.partition(" ")
    metrics = (found.get("sets", {}) | {key: found[key] for key in ("near", "far") if key in found}).get(part)
    return None if metrics is None else 100 * metrics[which or "auroc"]


def _p_unknown(summary: Mapping[str, Any], by_set: Mapping[str, Any], part: str) -> float | None:
    """The mean of the extra output on correctly or wrongly predicted known images, or on unknown ones."""
    if part in ("correct", "wrong"):
        return next((each[f"p_unknown_{part}"] for each in by_set.values()), None)
    members = summary[part] if part in ("near", "far") else [part]
    known = [by_set[name]["p_unknown_unknown"] for name in members if name in by_set]
    return mean(known) if known else None


@cache
def _paper(data: str, topology: str, training: str, metric: str) -> dict[int, float]:
    """The paper's number, as the value of a seed -1."""
    name, digits = topology.rstrip("0123456789"), topology.lstrip("abcdefghijklmnopqrstuvwxyz")
    detector, _, part = metric.partition(" ")
    if not part:
        detector, metric = "", metric.replace("-", "_")
    network = Measurement(data, name, float(digits or 0) / 100, training, detector, "auroc" if part else metric)
    found = published("").get((network, part))
    return {} if found is None else {-1: found[0]}
