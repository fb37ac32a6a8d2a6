"""The paper's evaluation: which numbers each table and figure is made of, which runs they need, what the paper has.

A table is a list of lines (a network, a detector, a metric); `paper.csv` beside this file has the paper's own numbers,
line by line. A scale says which benchmark stands for the paper's data, how long and how often to train.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from moon.data import Benchmark, benchmark, has
from moon.recipe import build
from moon.recipe.presets import MOONS, PLAINS, PRESETS, Preset
from moon.recipe.recipe import Recipe
from moon.sparse.flops import PaperRow, paper_flops
from moon.suggest import did_you_mean

EPOCHS = 100  # of the paper's runs; what it counts in epochs is a share of them
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
KNOWN_METRICS = ("accuracy", "ece", "ece_scaled")  # of a run, whatever the unknown sets
FILL_METRICS = ("p_unknown_correct", "p_unknown_wrong", "p_unknown_unknown")  # mean p_{K+1}: whether the output fills
# The sets under the names that the paper has for them; the others are called alike.
PAPER_NAMES = {"cifar100-part": "cifar100", "dtd": "texture", "places": "places365"}

_HEADINGS = {
    "auroc": "AUROC %", "fpr95": "FPR-95 %", "aupr_in": "AUPR-in %", "ece": "ECE", "ece_scaled": "ECE scaled",
    "accuracy": "accuracy %",
    "time_ratio": "time / RigL's", "moon": "MOON", "plain": "plain", "without-lm": "MOON w/o LM",
    "without-at-final": "MOON w/o AT (w_f throughout)", "without-at-initial": "MOON w/o AT (w_i throughout)",
    "without-vt": "MOON w/o VT", "moon-logitnorm": "MOON normalised", "rigl": "RigL", "set": "SET",
    "control": "control", "logitnorm": "LogitNorm", "vos": "VOS", "dac": "DAC", "cigl": "CigL",
    "p_unknown_correct": "p_{K+1}, known and right", "p_unknown_wrong": "p_{K+1}, known and wrong",
    "p_unknown_unknown": "p_{K+1}, unknown", "label-smoothing": "label smoothing", "eow-softmax": "EOW-Softmax",
    "static": "static", "dense": "dense", "cigl-alone": "CigL without vote",
    "mixup": "Mixup", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "imagenet": "ImageNet",
}  # fmt: skip

VOTELESS = ("logitnorm", "vos", "dac", "mixup", "label-smoothing", "eow-softmax")  # rivals that do not vote

# Not the authors' (100, 1), so the tables' recipes say it whatever the default (docs/LOG.md).
_OPTIONS = {"eow-softmax": {"steps": 20, "step": 0.01}}

# How the networks of the tables are trained.
TRAININGS: dict[str, Preset] = {
    **PRESETS,
    **{name: Preset(name, _OPTIONS.get(name, {})) for name in ("moon", "moon-logitnorm", *VOTELESS, "cigl")},
    **{f"{name}+vote": Preset(name, _OPTIONS.get(name, {}), MOONS) for name in VOTELESS},  # as the control
    "cigl-alone": Preset("cigl", settings=PLAINS),  # which has a vote of its own
}


@dataclass(frozen=True)
class Line:
    """One line of numbers: a network, and how it is asked."""

    data: str
    topology: str
    sparsity: float
    training: str
    detector: str = ""
    metric: str = "auroc"


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    key: str
    title: str
    lines: tuple[Line, ...]
    columns: tuple[str, ...] = ("set",)  # which of a number's facts make its column; the others make its row
    pairs: tuple[tuple[str, str], ...] = (("moon", "plain"),)  # trainings that are compared
    means_only: bool = False  # near and far, no single sets
    note: str = ""
    draw: str = ""  # of a figure: the function that draws it

    @property
    def detectors(self) -> list[str]:
        return list(dict.fromkeys(line.detector for line in self.lines if line.detector))


@dataclass(frozen=True)
class Scale:
    """How large the evaluation is."""

    benchmarks: Mapping[str, str]  # which benchmark stands for the paper's data
    epochs: int = EPOCHS
    seeds: int = 3
    other_seeds: int | None = None  # of networks other than RigL's plain and MOON, if fewer
    sparsities: tuple[float, ...] = ()  # those that are run, the nearest in place of each; (): the paper's
    settings: Mapping[str, Any] = field(default_factory=dict)  # of every recipe

    def reduced(self, line: Line) -> Line:
        """The line with a sparsity that is run at this scale."""
        if not self.sparsities or line.topology == "dense":
            return line
        return replace(line, sparsity=min(self.sparsities, key=lambda s: abs(s - line.sparsity)))

    def seeds_of(self, line: Line) -> range:
        is_first = line.topology == "rigl" and line.training in ("plain", "moon")
        return range(self.seeds if is_first or self.other_seeds is None else min(self.seeds, self.other_seeds))

    def on(self, pairs: Iterable[str]) -> Scale:
        """The same with other benchmarks, each `DATA=NAME`."""
        given = {}
        for pair in pairs:
            data, _, name = pair.partition("=")
            if not name or data not in self.benchmarks:
                known = ", ".join(self.benchmarks)
                raise ValueError(
                    f"'{pair}' is not DATA=NAME with data of the paper{did_you_mean(data, self.benchmarks)}; known: {known}"
                )
            given[data] = name
        return replace(self, benchmarks=dict(self.benchmarks) | given)


FULL = Scale({"mnist": "mnist", "cifar10": "cifar10", "cifar100": "cifar100", "imagenet": "imagenet-v1"})
MINI = Scale(
    dict.fromkeys(FULL.benchmarks, "digits"),
    epochs=2,
    seeds=2,
    other_seeds=1,
    sparsities=(0.7, 0.9, 0.99),
    settings={"batch_size": 64, "delta_t_steps": 20},
)


def called(word: str) -> str:
    """What a word of the tables is called where people read it."""
    name, plus, more = word.partition("+")
    return f"{_HEADINGS.get(name, name)} + {more}" if plus else _HEADINGS.get(word, word)


def recipe(line: Line, scale: Scale, row: Benchmark, seed: int) -> Recipe:
    """The run that a line is of."""
    asked = replace(line, data="", detector="", metric="")  # what does not change the run
    return replace(_recipe(asked, row, scale.epochs, tuple(scale.settings.items())), seed=seed)


@cache  # many lines share a run, and checking a recipe takes a while
def _recipe(line: Line, row: Benchmark, epochs: int, common: tuple[tuple[str, Any], ...]) -> Recipe:
    word, _, value = line.training.partition("=")
    training = TRAININGS["moon" if value else word]
    options = _shortened(training.objective, epochs) | dict(training.options)
    settings: dict[str, Any] = dict(common) | dict(training.settings)
    if word == "w_f":
        options |= {"final": float(value)}
    elif word == "T_e":
        options |= {"quiet_epochs": _quiet(int(value), epochs)}
    elif word == "votes":
        settings |= {"vote_share": _share_of(int(value), epochs) / epochs}
    if row.known_set == "imagenet":
        settings |= {"batch_size": 32}  # the paper's
    if (row.known_set, row.net) == ("mnist", "lenet"):
        settings.setdefault("net", "resnet18")  # the paper's; LeNet is OpenOOD's
    settings |= {"topology": line.topology, "epochs": epochs}
    settings |= {"sparsity": None if line.topology == "dense" else line.sparsity}
    return build.recipe(row, training.objective, options=options, **settings)


def _shortened(objective: str, epochs: int) -> dict[str, Any]:
    """Quiet epochs of a run that is not as long as the paper's; none where it is."""
    takes = build.TABLES["objective"][objective].takes()
    if epochs == EPOCHS or "quiet_epochs" not in takes:
        return {}
    return {"quiet_epochs": _quiet(takes["quiet_epochs"].default, epochs)}


def _share_of(count: int, epochs: int) -> int:
    """What is `count` of the paper's epochs, in a run of so many: at least one."""
    return max(1, round(count * epochs / EPOCHS))


def _quiet(count: int, epochs: int) -> int:
    return min(_share_of(count, epochs), epochs - 1)  # one must be left that is not quiet


def missing(root: Path, items: Iterable[Item], scale: Scale) -> dict[str, str]:
    """The paper's data that the items need and that are not there, with the benchmark that should have them."""
    found = {}
    for data in dict.fromkeys(line.data for item in items for line in item.lines):
        row = benchmark(root, scale.benchmarks[data])
        if not (has(root, row.known_set, "train", row) and has(root, row.known_set, "test", row)):
            found[data] = row.name
    return found


def runs(root: Path, items: Iterable[Item], scale: Scale, without: Iterable[str] = ()) -> dict[Recipe, list[str]]:
    """All runs that the items need, each with the detectors to ask; seed by seed, so that whole tables fill first."""
    rows = cache(lambda data: benchmark(root, scale.benchmarks[data]))
    lines = dict.fromkeys(scale.reduced(line) for item in items for line in item.lines if line.data not in without)
    found: dict[Recipe, dict[str, None]] = {}
    for seed in range(scale.seeds):
        for line in lines:
            if seed in scale.seeds_of(line):
                asked = found.setdefault(recipe(line, scale, rows(line.data), seed), {"msp": None})  # for its pictures
                asked |= {line.detector: None} if line.detector else {}
    return {one: list(asked) for one, asked in found.items()}


@cache
def entries() -> tuple[Mapping[str, str], ...]:
    """The lines of `paper.csv`."""
    with (files("moon.paper") / "published.csv").open() as file:
        return tuple(csv.DictReader(file))


@cache
def published(key: str) -> dict[tuple[Line, str], tuple[float, float | None]]:
    """The paper's numbers of a table, mean and deviation if it gives one, by line and set, in the units it has.

    Its tables do not always agree, so each has its own; what is not a table of the paper has the first that fits.
    """
    is_table = key.startswith("table")
    found: dict[tuple[Line, str], tuple[float, float | None]] = {}
    for entry in entries():
        if not is_table or key == f"table{entry['table']}":
            value = float(entry["mean"]), float(entry["std"]) if entry["std"] else None
            for line in lines_of(entry):
                found.setdefault((line, entry["set"]), value)
    return found


def lines_of(entry: Mapping[str, str]) -> list[Line]:
    """What an entry is a number of."""
    words = {f.name: entry[f.name] for f in fields(Line)} | {"sparsity": float(entry["sparsity"])}
    if entry["training"] != "without-at":
        return [Line(**words)]  # pyright: ignore[reportArgumentType]
    both = ("without-at-final", "without-at-initial")  # which one the paper has is not known
    return [Line(**words | {"training": word}) for word in both]  # pyright: ignore[reportArgumentType]


EXTRAS = ("flops", "theory")  # what needs no runs


def flops() -> list[PaperRow]:
    """Appendix E: what the paper counts for ResNet-50, beside what can be counted."""
    return paper_flops(build.pick(build.TABLES["net"], "resnet50", "net")(num_classes=1000))
