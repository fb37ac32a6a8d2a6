"""The paper's evaluation: which numbers each table and figure is made of, which runs they need, what the paper has.

A table is a list of lines (a network, a detector, a metric); `paper.csv` beside this file has the paper's own numbers,
line by line. A scale says which benchmark stands for the paper's data, how long and how often to train.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from moon.data import Benchmark, benchmark, has
from moon.experiments import build
from moon.experiments.recipe import Recipe
from moon.sparse.cost import PaperRow, paper_flops
from moon.words import nearest

EPOCHS = 100  # of the paper's runs; what it counts in epochs is a share of them
SPARSITIES = (0.8, 0.9, 0.95, 0.99)
KNOWN_METRICS = ("accuracy", "ece")  # of a run, whatever the unknown sets
# The sets under the names that the paper has for them; the others are called alike.
PAPER_NAMES = {"cifar100-part": "cifar100", "dtd": "texture", "places": "places365"}

# How the networks of the tables are trained: objective, its options, and what else differs from the objective's own.
TRAININGS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("cross-entropy", {}, {}),
    "control": ("cross-entropy", {}, {"rates": "moon", "vote_share": 0.2}),  # what MOON has besides its loss
    "moon": ("moon", {}, {}),
    "moon-logitnorm": ("moon-logitnorm", {}, {}),
    "without-lm": ("moon", {"schedule": "final", "final": 0.0}, {}),
    # "Without auto-tuning" is not defined in the paper; these are its two readings.
    "without-at-final": ("moon", {"schedule": "final"}, {}),
    "without-at-initial": ("moon", {"schedule": "initial"}, {}),
    "without-vt": ("moon", {}, {"vote_share": 0.0}),
    **{name: (name, {}, {}) for name in ("logitnorm", "vos", "dac", "mixup", "cigl", "label-smoothing")},
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
                    f"'{pair}' is not DATA=NAME with data of the paper{nearest(data, self.benchmarks)}; known: {known}"
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


def recipe(line: Line, scale: Scale, row: Benchmark, seed: int) -> Recipe:
    """The run that a line is of."""
    asked = replace(line, data="", detector="", metric="")  # what does not change the run
    return replace(_recipe(asked, row, scale.epochs, tuple(scale.settings.items())), seed=seed)


@cache  # many lines share a run, and checking a recipe takes a while
def _recipe(line: Line, row: Benchmark, epochs: int, common: tuple[tuple[str, Any], ...]) -> Recipe:
    word, _, value = line.training.partition("=")
    objective, options, rest = TRAININGS["moon" if value else word]
    options = _shortened(objective, epochs) | options
    settings: dict[str, Any] = dict(common) | rest
    if word == "w_f":
        options |= {"final": float(value)}
    elif word == "T_e":
        options |= {"quiet_epochs": _quiet(int(value), epochs)}
    elif word == "votes":
        settings |= {"vote_share": _share_of(int(value), epochs) / epochs}
    if row.known_set == "imagenet":
        settings |= {"batch_size": 32}  # the paper's
    settings |= {"topology": line.topology, "epochs": epochs}
    settings |= {"sparsity": None if line.topology == "dense" else line.sparsity}
    return build.recipe(row, objective, options=options, **settings)


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
def _entries() -> tuple[Mapping[str, str], ...]:
    with (files("moon.experiments") / "paper.csv").open() as file:
        return tuple(csv.DictReader(file))


@cache
def published(key: str) -> dict[tuple[Line, str], tuple[float, float | None]]:
    """The paper's numbers of a table, mean and deviation if it gives one, by line and set, in the units it has.

    Its tables do not always agree, so each has its own; what is not a table of the paper has the first that fits.
    """
    is_table = key.startswith("table")
    found: dict[tuple[Line, str], tuple[float, float | None]] = {}
    for entry in _entries():
        if not is_table or key == f"table{entry['table']}":
            value = float(entry["mean"]), float(entry["std"]) if entry["std"] else None
            for line in _lines_of(entry):
                found.setdefault((line, entry["set"]), value)
    return found


def _lines_of(entry: Mapping[str, str]) -> list[Line]:
    words = {f.name: entry[f.name] for f in fields(Line)} | {"sparsity": float(entry["sparsity"])}
    if entry["training"] != "without-at":
        return [Line(**words)]  # pyright: ignore[reportArgumentType]
    both = ("without-at-final", "without-at-initial")  # which one the paper has is not known
    return [Line(**words | {"training": word}) for word in both]  # pyright: ignore[reportArgumentType]


def _table(number: int, title: str, **settings: Any) -> Item:
    """A table of the paper, whose lines are those of its numbers."""
    entries = [entry for entry in _entries() if entry["table"] == str(number)]
    lines = tuple(dict.fromkeys(line for entry in entries for line in _lines_of(entry)))
    means_only = {entry["set"] for entry in entries} <= {"near", "far"}
    return Item(f"table{number}", title, lines, means_only=means_only, **settings)


def _lines(
    data: Sequence[str],
    topologies: Sequence[str],
    sparsities: Sequence[float],
    trainings: Sequence[str],
    detectors: Sequence[str] = ("msp",),
    metrics: Sequence[str] = ("auroc",),
) -> tuple[Line, ...]:
    return tuple(
        Line(d, topology, 0.0 if topology == "dense" else sparsity, training, detector, metric)
        for d in data
        for topology in topologies
        for sparsity in ((0.0,) if topology == "dense" else sparsities)
        for training in trainings
        for detector in detectors
        for metric in metrics
    )


_ABLATIONS = ("without-lm", "without-at-final", "without-at-initial", "without-vt")
_BOTH = ("plain", "moon")


def _hexagon(number: int, sparsity: float) -> Item:
    rivals = (
        *_lines(["cifar10"], ["rigl"], [sparsity], ["plain"], ["tempscale"], ["fpr95"]),
        *_lines(["cifar10"], ["rigl"], [sparsity], ["mixup", "cigl"], ["msp"], ["fpr95"]),
    )
    moon = _lines(["cifar10"], ["rigl"], [sparsity], ["moon"], ["odin"], ["fpr95"])
    return Item(
        f"figure{number}",
        f"FPR-95 of MOON with ODIN against temperature scaling, Mixup and CigL, RigL {sparsity:.0%}",
        rivals + moon,
        pairs=(),
        draw="hexagons",
    )


def _all_items() -> list[Item]:
    against_moon = tuple(("moon", word) for word in _ABLATIONS)
    known = _lines(["cifar10", "cifar100"], ["rigl"], SPARSITIES, _BOTH, [""], ["accuracy", "ece"])
    imagenet = ("auroc", "fpr95")
    alone = "Times compare only where each run had the machine for itself (--jobs 1)."
    return [
        _table(1, "RigL, MSP: AUROC"),
        _table(2, "RigL 99%, ODIN and EBO: AUROC and FPR-95", columns=("metric", "set")),
        _table(3, "RigL, KNN and KLM: AUROC"),
        _table(4, "SET, MSP: ECE, accuracy and FPR-95", columns=("metric", "set")),
        _table(5, "RigL, training-time regularisers: AUROC", pairs=(("moon", "logitnorm"), ("moon", "vos"))),
        _table(6, "DAC at 80%: ECE, accuracy and AUROC", columns=("metric", "set"), pairs=(("moon", "dac"),)),
        _table(
            7,
            "Ablations: ECE and accuracy",
            columns=("sparsity", "metric"),
            pairs=against_moon,
            note="The paper's caption says CIFAR-100; its accuracies (94%) are CIFAR-10's, which is what is run here.",
        ),
        _table(8, "RigL, MSP: FPR-95"),
        _table(9, "SET, MSP: AUROC"),
        _table(10, "MNIST, dense, MSP: FPR-95 and AUROC", columns=("metric", "set")),
        _table(11, "CIFAR-10, dense, MSP, ODIN and EBO: FPR-95 and AUROC", columns=("metric", "set")),
        _table(12, "w_f at 95%: AUROC", pairs=(), note="MOON is w_f = 1."),
        _table(13, "Incremental ablation of the loss (LM): w_f at 95%", pairs=(), note="MOON is w_f = 1."),
        _table(14, "Incremental ablation of auto-tuning (AT): T_e at 95%", pairs=(), note="MOON is T_e = 5."),
        _table(15, "Incremental ablation of voting (VT): epochs that vote at 95%", pairs=(), note="MOON has 20 votes."),
        *(
            _table(number, f"Training time, {data}", columns=("sparsity",), pairs=(), note=alone)
            for number, data in ((16, "CIFAR-10"), (17, "CIFAR-100"))
        ),
        Item(
            "figure1",
            "AUROC of dense, sparse and MOON, RigL and SET, 80 to 99%",
            _lines(["cifar10", "cifar100"], ["dense"], (), ["plain"])
            + _lines(["cifar10", "cifar100"], ["rigl", "set"], SPARSITIES, _BOTH),
            means_only=True,
            draw="bars",
        ),
        Item("figure2", "ImageNet, RigL 90%: AUROC and FPR-95",
             _lines(["imagenet"], ["rigl"], [0.9], _BOTH, ["msp"], imagenet), draw="set_bars"),
        _hexagon(3, 0.9),
        Item("figure4", "Accuracy and ECE over sparsity", known, columns=("sparsity",), draw="curves"),
        Item("figure5", "FPR-95 of MOON and its ablations, RigL 80%",
             _lines(["cifar10"], ["rigl"], [0.8], (*_ABLATIONS, "moon"), ["msp"], ["fpr95"]),
             pairs=against_moon, draw="hexagons"),
        _hexagon(6, 0.99),
        Item(
            "figure7",
            "AUROC of dense, sparse and MOON, RigL, 50 to 70%",
            _lines(["cifar10", "cifar100"], ["dense"], (), ["plain"])
            + _lines(["cifar10", "cifar100"], ["rigl"], (0.5, 0.6, 0.7), _BOTH),
            means_only=True,
            draw="bars",
        ),
        Item("figure8", "ImageNet, dense: AUROC, AUPR and FPR-95",
             _lines(["imagenet"], ["dense"], (), _BOTH, ["msp"], ("auroc", "aupr_in", "fpr95")), draw="set_bars"),
        *(
            Item(f"figure{9 + number}", f"First principal component of the features, a class a panel, RigL {s:.0%}",
                 _lines(["cifar10"], ["rigl"], [s], ["plain"], [""], ["accuracy"]), pairs=(), draw="components")
            for number, s in enumerate(SPARSITIES)
        ),
        Item(
            "controls",
            "Ours: how much of MOON is its learning rate and vote, and MOON on normalised logits",
            _lines(["cifar10"], ["rigl"], SPARSITIES, ("plain", "control", "moon", "moon-logitnorm")),
            pairs=(("moon", "plain"), ("moon", "control"), ("control", "plain"), ("moon-logitnorm", "plain")),
        ),
    ]  # fmt: skip


@cache
def items() -> dict[str, Item]:
    """Every table and figure by its key."""
    return {item.key: item for item in _all_items()}


def choose(words: Iterable[str]) -> list[Item]:
    """The items of these keys; `all` is every one."""
    chosen: dict[str, Item] = {}
    for word in words:
        if word == "all":
            chosen |= items()
        elif word in items():
            chosen[word] = items()[word]
        else:
            known = f"table1 to table17, figure1 to figure12, controls, {', '.join(EXTRAS)}, all, mini"
            raise ValueError(
                f"the paper has no '{word}'{nearest(word, [*items(), *EXTRAS, 'all', 'mini'])}; known: {known}"
            )
    return list(chosen.values())


EXTRAS = ("flops", "theory")  # what needs no runs


def flops() -> list[PaperRow]:
    """Appendix E: what the paper counts for ResNet-50, beside what can be counted."""
    return paper_flops(build.pick(build.TABLES["net"], "resnet50", "net")(num_classes=1000))
