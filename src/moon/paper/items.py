"""Every table and figure of the paper, and what each is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from moon.detect import DETECTORS
from moon.paper.spec import EXTRAS, FILL_METRICS, SPARSITIES, VOTELESS, Item, Line, entries, lines_of
from moon.suggest import did_you_mean


def _table(number: int, title: str, **settings: Any) -> Item:
    """A table of the paper, whose lines are those of its numbers."""
    own = [entry for entry in entries() if entry["table"] == str(number)]
    lines = tuple(dict.fromkeys(line for entry in own for line in lines_of(entry)))
    means_only = {entry["set"] for entry in own} <= {"near", "far"}
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


OURS = ("controls", "summary", "detectors", "fill", "topologies", "ablations", "rivals", "mnist")
_ABLATIONS = ("without-lm", "without-at-final", "without-at-initial", "without-vt")
_BOTH = ("plain", "moon")
_CONTROLLED = ("plain", "control", "moon", "moon-logitnorm")
_MEANT = (
    "control is the plain loss with MOON's learning rates and vote; normalised means MOON's loss on normalised logits."
)
_MNIST = "The paper says that it trained a ResNet-18; the MSP numbers that it quotes are OpenOOD's, of a LeNet."
_AGAINST = (("moon", "plain"), ("moon", "control"), ("control", "plain"), ("moon-logitnorm", "plain"))


def _summary(
    data: str, topologies: Sequence[str], sparsities: Sequence[float], trainings: Sequence[str]
) -> tuple[Line, ...]:
    """What sums a network up: near and far of three detectors, and how good and honest it is on known inputs."""
    place = [data], topologies, sparsities, trainings
    return _lines(*place, ["msp", "ebo", "knn"]) + _lines(*place, [""], ["accuracy", "ece", "ece_scaled"])


def _ours(
    key: str,
    title: str,
    lines: tuple[Line, ...],
    pairs: tuple[tuple[str, str], ...] = (),
    columns: tuple[str, ...] = ("detector", "metric", "set"),
    note: str = "",
    draw: str = "",
) -> Item:
    """A table that the paper does not have, or not so."""
    return Item(key, f"Ours: {title}", lines, columns, pairs, means_only=True, note=note, draw=draw)


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
        _table(10, "MNIST, dense, MSP: FPR-95 and AUROC", columns=("metric", "set"), note=_MNIST),
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
            _lines(["cifar10"], ["rigl"], SPARSITIES, _CONTROLLED),
            pairs=_AGAINST,
            note=_MEANT,
        ),
        _ours("summary", "MOON and its control in short",
              _summary("cifar10", ["rigl"], SPARSITIES, _CONTROLLED), _AGAINST, note=_MEANT, draw="trainings"),
        _ours("detectors", "every detector on RigL 95%: AUROC",
              _lines(["cifar10"], ["rigl"], [0.95], _CONTROLLED, list(DETECTORS)), columns=("training", "set"),
              note=_MEANT),
        _ours("fill", "does the extra output fill?",
              _lines(["cifar10"], ["rigl"], SPARSITIES, ("moon", "moon-logitnorm"), [""], FILL_METRICS)),
        _ours("topologies", "dense, static and SET beside RigL",
              _summary("cifar10", ["dense"], (), _BOTH) + _summary("cifar10", ["static"], [0.95], _BOTH)
              + _summary("cifar10", ["set", "rigl"], SPARSITIES, _BOTH), (("moon", "plain"),)),
        _ours("ablations", "MOON's parts and parameters, RigL 95%",
              _summary("cifar10", ["rigl"], [0.95], (
                  "moon", *_ABLATIONS, *(f"w_f={w}" for w in (0.1, 0.5, 2, 4)), *(f"T_e={t}" for t in (1, 2, 3)),
                  *(f"votes={v}" for v in (2, 5, 10)))),
              note="MOON is w_f = 1, T_e = 5, 20 votes."),
        _ours("rivals", "training-time rivals with and without a vote, RigL 95%",
              _summary("cifar10", ["rigl"], [0.95], (
                  *_CONTROLLED, *(f"{name}{vote}" for name in VOTELESS for vote in ("", "+vote")),
                  "cigl-alone", "cigl")),
              tuple(("moon", name) for name in ("control", "logitnorm+vote", "cigl")),
              note=f"{_MEANT} EOW-Softmax takes 20 Langevin steps of 0.01, not its authors' 100 of 1."),
        _ours("mnist", "MNIST, dense and RigL 95%",
              _summary("mnist", ["dense", "rigl"], [0.95], _BOTH), (("moon", "plain"),), note=_MNIST),
    ]  # fmt: skip


@cache
def items() -> dict[str, Item]:
    """Every table and figure by its key."""
    return {item.key: item for item in _all_items()}


def choose(words: Iterable[str]) -> list[Item]:
    """The items of these keys; `all` is every one, `mini` the paper's own and the control."""
    chosen: dict[str, Item] = {}
    for word in words:
        if word == "all":
            chosen |= items()
        elif word == "mini":
            chosen |= {key: item for key, item in items().items() if key not in OURS or key == "controls"}
        elif word in items():
            chosen[word] = items()[word]
        else:
            known = f"table1 to table17, figure1 to figure12, {', '.join(OURS)}, {', '.join(EXTRAS)}, all, mini"
            raise ValueError(
                f"the paper has no '{word}'{did_you_mean(word, [*items(), *EXTRAS, 'all', 'mini'])}; known: {known}"
            )
    return list(chosen.values())
