"""The runs that are kept under results/, by name (`networks.py`), and what was measured on them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
from compact import LEVELS, read
from networks import COLLECTIONS, PAPER, Collection, network_name
from numpy.typing import NDArray

from moon.data.archives import read_npz
from moon.paper.published import published
from moon.paper.spec import SPARSITIES, Measurement
from moon.recipe import Recipe
from moon.records import read_record
from moon.results.collect import Run
from moon.score.files import KNOWN, MIRRORED
from moon.suggest import did_you_mean

# The detector of `best-1` was chosen in the search, with a network that is not tested (docs/results/best.md).
CHOSEN_IN_SEARCH = {"rigl95/moon-logitnorm@300": "fisher"}


class Kept:
    """The kept runs under the folder results/; each collection is read when it is first used."""

    def __init__(self, results: Path) -> None:
        self.results = results
        self._collections: dict[str, dict[str, dict[int, Run]]] = {}

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
        for run in (run for folder in collection.folders for run in read_all(self.results / folder)):
            shown = {group: run.summary[group] for group in ("near", "far", "sha256")}
            if (images := images or shown) != shown:
                raise ValueError(f"{run.folder} was scored on other images than the rest")
            name = network_name(run.recipe, collection) + ("+mirrored" if run.folder.name == MIRRORED else "")
            seeds = networks.setdefault(name, {})
            if run.recipe.seed in seeds:
                other = seeds[run.recipe.seed].folder
                raise ValueError(f"{run.folder} and {other} have the same name, {name}, and seed")
            seeds[run.recipe.seed] = run
        return {name: dict(sorted(seeds.items())) for name, seeds in networks.items()}

    def runs(self, network: str) -> dict[int, Run]:
        """The runs of a network by seed; none if the name is valid but nothing is kept."""
        name, _, rest = network.partition("/")
        topology, _, rest = rest.partition("/")
        training, _, seed = rest.partition("/s")
        found = self.collection(name).get(f"{topology}/{training}", {})
        return {number: run for number, run in found.items() if not seed or number == int(seed)}

    def has(self, network: str) -> bool:
        """Whether any run of a network is kept, or the paper has numbers for it."""
        return any(self.values(network, metric) for metric in ("accuracy", "msp near"))

    def values(self, network: str, metric: str) -> dict[int, float]:
        """The values of a metric by seed, in the units that tables show, for the seeds where it was measured.

        A metric is `DETECTOR near`, `DETECTOR far` or `DETECTOR SET` (AUROC in percent; with `fpr95` at the end the
        share of unknown images that are accepted if 95% of the known ones are); `accuracy` (percent), `ece`,
        `ece-scaled`, `temperature`, `training-flops`, `classifier-density`; `p-unknown correct`, `p-unknown wrong` or
        `p-unknown SET`. Detectors and p-unknown that depend on the scale of the logits use the fitted temperature if
        logits are normalised; with `:unscaled` after the name they use T = 1. The detector `chosen` is the one that
        `chosen` returns.
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

    def levels(self, run: Run) -> dict[str, NDArray]:
        """The levels of the scores of every image, `DETECTOR/SET`, and `correct`, a number for each known image."""
        path, prefix = run.folder.parent / LEVELS, f"{run.folder.name}/"
        arrays, _ = read_npz(path)
        found = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        if not found:
            raise ValueError(f"{path}: has no scores of {run.folder.name} (results/keep.py --images)")
        return found | {"correct": np.unpackbits(found["correct"])[: run.summary["images"][KNOWN]]}

    def chosen(self, network: str) -> str | None:
        """The detector that is best for a network on validation images, None if none was chosen.

        It has the highest mean of near and far AUROC over all seeds for which detectors were ranked (`choose.py`).
        """
        if network.partition("/")[2] in CHOSEN_IN_SEARCH:
            return CHOSEN_IN_SEARCH[network.partition("/")[2]]
        choices = [run.summary["choice"] for run in self.runs(network).values() if "choice" in run.summary]
        if not choices:
            return None
        if any(each["auroc"].keys() != choices[0]["auroc"].keys() for each in choices):
            raise ValueError(f"{network}: other detectors were ranked for one seed than for another")

        def score(detector: str) -> float:
            found = [each["auroc"][detector] for each in choices]
            if any("refused" in auroc for auroc in found):
                return 0.0
            groups = [each[group] for each in choices for group in ("near", "far")]
            values = [auroc for auroc in found for _ in ("near", "far")]
            return mean(mean(auroc[name] for name in group) for auroc, group in zip(values, groups, strict=True))

        return max(choices[0]["auroc"], key=score)


def is_same(a: Run, b: Run) -> bool:
    """Whether two folders contain the same run, not a repeated one."""
    return a.result == b.result


def read_all(folder: Path) -> list[Run]:
    """The runs in a folder, those with mirrored images as runs of their own; a ValueError if the folder is missing."""
    runs = []
    for name, summary in read(folder).items():
        home = folder / name.removesuffix(f"/{MIRRORED}")
        recipe, result = Recipe.load(home / "recipe.json"), read_record(home / "result.json")
        runs.append(Run(folder / name, recipe, result, [], summary))
    return runs


def value(run: Run, metric: str) -> float | None:
    """One metric of a run, in the units that tables show; None if it was not measured."""
    summary, (kind, _, part) = run.summary, metric.partition(" ")
    if kind in ("accuracy", "ece") and not part:
        return summary["known"][kind] * (100 if kind == "accuracy" else 1)
    if kind in ("ece-scaled", "temperature") and not part:
        return summary.get("known_scaled", {}).get(kind.removesuffix("-scaled"))
    if metric == "training-flops":
        return (run.result["flops"] or {}).get("training")
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
