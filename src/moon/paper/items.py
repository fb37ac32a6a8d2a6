"""Every table and figure of the paper, and tables of ours that the paper does not have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from moon.paper.published import measurements_of, published_rows
from moon.paper.recipes import NO_VOTE, TRAININGS
from moon.paper.spec import EXTRAS, OURS, P_UNKNOWN_METRICS, SPARSITIES, Item, Measurement
from moon.recipe import table
from moon.recipe.registry import full_name
from moon.suggest import did_you_mean

_ABLATIONS = ("without-lm", "without-at-final", "without-at-initial", "without-vt")
_ABLATION_PAIRS = tuple(("moon", name) for name in _ABLATIONS)
_BOTH = ("plain", "moon")
_CONTROLLED = ("plain", "control", "moon", "moon-logitnorm")
_COMPARED = (("moon", "plain"), ("moon", "control"), ("control", "plain"), ("moon-logitnorm", "plain"))
_CONTROL = "control: the plain loss with MOON's learning rates and vote."
_CONTROL_NOTE = f"{_CONTROL} MOON normalised: MOON's loss on normalised logits."
_MNIST_NOTE = "The paper states that it trained a ResNet-18; the MSP numbers it quotes are OpenOOD's, for a LeNet."


def _table(number: int, title: str, **settings: Any) -> Item:
    """A table of the paper; it measures whatever the paper has numbers for."""
    rows = [row for row in published_rows() if row["table"] == str(number)]
    measurements = tuple(dict.fromkeys(measurement for row in rows for measurement in measurements_of(row)))
    means_only = {row["set"] for row in rows} <= {"near", "far"}
    return Item(f"table{number}", title, measurements, means_only=means_only, **settings)


def _product(
    data: Sequence[str],
    topologies: Sequence[str],
    sparsities: Sequence[float],
    trainings: Sequence[str],
    detectors: Sequence[str] = ("msp",),
    metrics: Sequence[str] = ("auroc",),
) -> tuple[Measurement, ...]:
    """Every combination of these values; dense networks have one sparsity, 0."""
    return tuple(
        Measurement(d, topology, sparsity, training, detector, metric)
        for d in data
        for topology in topologies
        for sparsity in ((0.0,) if topology == "dense" else sparsities)
        for training in trainings
        for detector in detectors
        for metric in metrics
    )


def _summary(
    data: str, topologies: Sequence[str], sparsities: Sequence[float], trainings: Sequence[str]
) -> tuple[Measurement, ...]:
    """What summarises a network: AUROC of three detectors, accuracy, and calibration before and after scaling."""
    networks = [data], topologies, sparsities, trainings
    return _product(*networks, ["msp", "ebo", "knn"]) + _product(*networks, [""], ["accuracy", "ece", "ece_scaled"])


def _ours(
    key: str,
    title: str,
    measurements: tuple[Measurement, ...],
    pairs: tuple[tuple[str, str], ...] = (),
    columns: tuple[str, ...] = ("detector", "metric", "set"),
    note: str = "",
    draw: str = "",
) -> Item:
    """A table of near and far means that the paper does not have in this form."""
    return Item(key, f"{title} (not in the paper)", measurements, columns, pairs, means_only=True, note=note, draw=draw)


def _paper_tables() -> list[Item]:
    alone = "Times are comparable only if each run had the machine to itself."
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
            pairs=_ABLATION_PAIRS,
            note="The paper's caption says CIFAR-100, but its accuracies (94%) are those of CIFAR-10, used here.",
        ),
        _table(8, "RigL, MSP: FPR-95"),
        _table(9, "SET, MSP: AUROC"),
        _table(10, "MNIST, dense, MSP: FPR-95 and AUROC", columns=("metric", "set"), note=_MNIST_NOTE),
        _table(11, "CIFAR-10, dense, MSP, ODIN and EBO: FPR-95 and AUROC", columns=("metric", "set")),
        _table(12, "w_f at 95%: AUROC", pairs=(), note="MOON uses w_f = 1."),
        _table(13, "Incremental ablation of the loss (LM): w_f at 95%", pairs=(), note="MOON uses w_f = 1."),
        _table(14, "Incremental ablation of auto-tuning (AT): T_e at 95%", pairs=(), note="MOON uses T_e = 5."),
        _table(
            15,
            "Incremental ablation of voting (VT): number of voting epochs at 95%",
            pairs=(),
            note="MOON uses 20 votes.",
        ),
        _table(16, "Training time, CIFAR-10", columns=("sparsity",), pairs=(), note=alone),
        _table(17, "Training time, CIFAR-100", columns=("sparsity",), pairs=(), note=alone),
    ]


def _dense_and_sparse(number: int, title: str, topologies: Sequence[str], sparsities: Sequence[float]) -> Item:
    """Figures 1 and 7: sparse training and MOON at each sparsity, and dense training."""
    data = ("cifar10", "cifar100")
    dense, sparse = _product(data, ["dense"], (), ["plain"]), _product(data, topologies, sparsities, _BOTH)
    return Item(f"figure{number}", title, dense + sparse, means_only=True, draw="sparsity_points")


def _against_calibration(number: int, sparsity: float) -> Item:
    """Figures 3 and 6: MOON with ODIN against methods for calibration."""
    network = ["cifar10"], ["rigl"], [sparsity]
    return Item(
        f"figure{number}",
        f"FPR-95 of MOON with ODIN against temperature scaling, Mixup and CigL, RigL {sparsity:.0%}",
        _product(*network, ["plain"], ["tempscale"], ["fpr95"])
        + _product(*network, ["mixup", "cigl"], ["msp"], ["fpr95"])
        + _product(*network, ["moon"], ["odin"], ["fpr95"]),
        pairs=(),
        draw="radar_charts",
    )


def _paper_figures() -> list[Item]:
    return [
        _dense_and_sparse(1, "AUROC of dense, sparse and MOON, RigL and SET, 80 to 99%", ["rigl", "set"], SPARSITIES),
        Item(
            "figure2",
            "ImageNet, RigL 90%: AUROC and FPR-95",
            _product(["imagenet"], ["rigl"], [0.9], _BOTH, ["msp"], ["auroc", "fpr95"]),
            draw="set_points",
        ),
        _against_calibration(3, 0.9),
        Item(
            "figure4",
            "Accuracy and ECE over sparsity",
            _product(["cifar10", "cifar100"], ["rigl"], SPARSITIES, _BOTH, [""], ["accuracy", "ece"]),
            columns=("sparsity",),
            draw="sparsity_curves",
        ),
        Item(
            "figure5",
            "FPR-95 of MOON and its ablations, RigL 80%",
            _product(["cifar10"], ["rigl"], [0.8], (*_ABLATIONS, "moon"), ["msp"], ["fpr95"]),
            pairs=_ABLATION_PAIRS,
            draw="radar_charts",
        ),
        _against_calibration(6, 0.99),
        _dense_and_sparse(7, "AUROC of dense, sparse and MOON, RigL, 50 to 70%", ["rigl"], (0.5, 0.6, 0.7)),
        Item(
            "figure8",
            "ImageNet, dense: AUROC, AUPR and FPR-95",
            _product(["imagenet"], ["dense"], (), _BOTH, ["msp"], ["auroc", "aupr_in", "fpr95"]),
            draw="set_points",
        ),
        *(
            Item(
                f"figure{number}",
                f"First principal component of the features, one panel per class, RigL {sparsity:.0%}",
                _product(["cifar10"], ["rigl"], [sparsity], ["plain"], [""], ["accuracy"]),
                pairs=(),
                draw="component_histograms",
            )
            for number, sparsity in enumerate(SPARSITIES, 9)
        ),
    ]


def _our_tables() -> list[Item]:
    every = table("detector")
    detectors = [name for name in every if every.is_builtin(name) and not every[name].rotates]  # no rotation head here
    parameters = [f"w_f={w}" for w in (0.1, 0.5, 2, 4)]
    parameters += [f"T_e={epochs}" for epochs in (1, 2, 3)] + [f"votes={votes}" for votes in (2, 5, 10)]
    rivals = [f"{name}{vote}" for name in NO_VOTE for vote in ("", "+vote")] + ["cigl-alone", "cigl"]
    return [
        Item(
            "controls",
            "Effect of MOON's learning rates and vote alone, and MOON on normalised logits (not in the paper)",
            _product(["cifar10"], ["rigl"], SPARSITIES, _CONTROLLED),
            pairs=_COMPARED,
            note=_CONTROL_NOTE,
        ),
        _ours(
            "summary",
            "MOON and its control at all sparsities",
            _summary("cifar10", ["rigl"], SPARSITIES, _CONTROLLED),
            _COMPARED,
            note=_CONTROL_NOTE,
            draw="training_dots",
        ),
        _ours(
            "detectors",
            "Every detector on RigL 95%: AUROC",
            _product(["cifar10"], ["rigl"], [0.95], _CONTROLLED, detectors),
            columns=("training", "set"),
            note=_CONTROL_NOTE,
        ),
        _ours(
            "fill",
            "Mean probability of the extra output",
            _product(["cifar10"], ["rigl"], SPARSITIES, ("moon", "moon-logitnorm"), [""], P_UNKNOWN_METRICS),
        ),
        _ours(
            "topologies",
            "Dense, static, SET and RigL",
            _summary("cifar10", ["dense"], (), _BOTH)
            + _summary("cifar10", ["static"], [0.95], _BOTH)
            + _summary("cifar10", ["set", "rigl"], SPARSITIES, _BOTH),
            (("moon", "plain"),),
        ),
        _ours(
            "ablations",
            "MOON's parts and parameters, RigL 95%",
            _summary("cifar10", ["rigl"], [0.95], ("moon", *_ABLATIONS, *parameters)),
            note="MOON uses w_f = 1, T_e = 5 and 20 votes.",
        ),
        _ours(
            "rivals",
            "Other training methods with and without a vote, RigL 95%",
            _summary("cifar10", ["rigl"], [0.95], (*_CONTROLLED, *rivals)),
            tuple(("moon", name) for name in ("control", "logitnorm+vote", "cigl")),
            note=f"{_CONTROL_NOTE} EOW-Softmax takes 20 Langevin steps of size 0.01; its authors take 100 of size 1.",
        ),
        _ours(
            "mnist",
            "MNIST, dense and RigL 95%",
            _summary("mnist", ["dense", "rigl"], [0.95], ("plain", "control", "moon")),
            (("moon", "plain"), ("moon", "control")),
            note=f"{_CONTROL} {_MNIST_NOTE}",
        ),
    ]


@cache
def items() -> dict[str, Item]:
    """Return every table and figure by its key."""
    return {item.key: item for item in (*_paper_tables(), *_paper_figures(), *_our_tables())}


def choose(keys: Iterable[str]) -> list[Item]:
    """Return the items with these keys, each once; `all` means every item, `mini` the paper's items and `controls`."""
    chosen: dict[str, Item] = {}
    for key in keys:
        if key == "all":
            chosen |= items()
        elif key == "mini":
            chosen |= {name: item for name, item in items().items() if name not in OURS or name == "controls"}
        elif key in items():
            chosen[key] = items()[key]
        else:
            suggestion = did_you_mean(key, [*items(), *EXTRAS, "all", "mini"])
            choices = f"table1 to table17, figure1 to figure12, {', '.join(OURS)}, {', '.join(EXTRAS)}, all, mini"
            raise ValueError(f"there is no table or figure '{key}'{suggestion}; choose from: {choices}")
    return list(chosen.values())


def with_method(items: Iterable[Item], name: str) -> list[Item]:
    """Add rows of a preset or an objective, trained as MOON is, or of a topology in place of RigL or SET, to tables.

    Figures of the paper stay as they are.

    Raises:
        ValueError: If there is no such method, or no table that it could be added to.
    """
    kinds = {kind: full_name(kind, name) for kind in ("preset", "objective", "topology")}
    kind = next((kind for kind, key in kinds.items() if key in table(kind)), "objective" if name in TRAININGS else "")
    if not kind:
        names = [*TRAININGS, *(key for kind in kinds for key in table(kind))]
        raise ValueError(f"there is no preset, objective or topology '{name}'{did_you_mean(name, names)}")
    key = kinds[kind]

    def added(measurement: Measurement) -> list[Measurement]:
        if kind == "topology" and measurement.topology in ("rigl", "set") and measurement.training in _BOTH:
            return [measurement, replace(measurement, topology=key)]
        is_reference = kind != "topology" and measurement.training == "moon"
        return [measurement, replace(measurement, training=key)] if is_reference else [measurement]

    def changed(item: Item) -> Item:
        if item.draw and (kind == "topology" or item.draw != "training_dots"):
            return item
        rows = tuple(dict.fromkeys(each for measurement in item.measurements for each in added(measurement)))
        pairs = ((key, "moon"), (key, "plain")) if item.pairs and kind != "topology" else ()
        return item if rows == item.measurements else replace(item, measurements=rows, pairs=item.pairs + pairs)

    before = list(items)
    after = list(map(changed, before))
    if after == before:
        raise ValueError(f"none of {', '.join(item.key for item in before)} is a table that {name} could be added to")
    return after
