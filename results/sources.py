"""Single numbers and comparisons of the kept runs.

A source names a number in a text, in an invisible comment right after it: `91.6<!-- cifar10/rigl95/moon msp near -->`.

    NETWORK METRIC [STATISTIC]             of all seeds of a network (see `networks.py` and, for metrics, `Kept.values`)
    NETWORK - NETWORK METRIC [STATISTIC]   of the differences, paired by seed; the second network may be the TRAINING
                                           alone, if the rest is the same: `cifar10/rigl95/moon - plain msp near`
    fixed                                  a number that is set, not measured, such as a goal or a setting

STATISTIC is one of `mean` (if none is given), `low` and `high` (95% t interval), `min`, `max`, `n`, and for differences
`p:FAMILY` (paired t-test, after Holm's correction over all comparisons of `FAMILIES[FAMILY]`).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from math import isnan
from pathlib import Path
from statistics import mean

from kept import Kept
from networks import PAPER

from moon.metrics import interval
from moon.paper.spec import SPARSITIES
from moon.results.compare import Comparison, Pairs, compare, pair_by_seed
from moon.suggest import did_you_mean

DETECTORS = ("msp", "odin", "ebo", "ebo:unscaled", "ebo:scaled", "knn", "klm", "fdbd", "fisher", "gen", "unknown")
DETECTORS += ("chosen", "mls", "vim", "scale", "ash", "tempscale", "unknown:unscaled", "rotpred")
P_UNKNOWN = ("p-unknown", "p-unknown:unscaled")
KNOWN_METRICS = ("accuracy", "ece", "ece-scaled", "temperature", "training-flops", "classifier-density")
NEAR_AND_FAR = [f"{detector} {group}" for detector in ("msp", "ebo", "knn") for group in ("near", "far")]
NINE = [*NEAR_AND_FAR, "accuracy", "ece", "ece-scaled"]
# EBO was not scored with the fitted temperature in every run with normalised logits.
WITHOUT_ENERGY = [f"{detector} {group}" for detector in ("msp", "knn", "fdbd") for group in ("near", "far")]
WITHOUT_ENERGY += ["accuracy", "ece-scaled"]
WITH_FISHER = [f"{detector} {group}" for detector in ("msp", "knn", "fisher") for group in ("near", "far")]
WITH_FISHER += ["accuracy", "ece-scaled"]
WITH_CHOSEN = [*WITH_FISHER, "chosen near", "chosen far"]

_STATISTICS: dict[str, Callable[[Sequence[float]], float]] = {
    "mean": mean,
    "low": lambda values: interval(values)[0],
    "high": lambda values: interval(values)[1],
    "min": min,
    "max": max,
    "n": len,
}


@dataclass(frozen=True)
class Pair:
    """Two networks that are compared by a metric: a minus b."""

    a: str
    b: str
    metric: str


def _pairs(pairs: Iterable[tuple[str, str]], metrics: Iterable[str]) -> list[Pair]:
    return [Pair(a, b, metric) for (a, b), metric in product(pairs, metrics)]


def at(place: str, *pairs: tuple[str, str]) -> list[tuple[str, str]]:
    """Pairs of networks from pairs of trainings at one COLLECTION/TOPOLOGY."""
    return [(f"{place}/{a}", f"{place}/{b}") for a, b in pairs]


def at_every_sparsity(collection: str, a: str, b: str) -> list[tuple[str, str]]:
    """Two trainings at each sparsity of CIFAR-10, and as the mean over the four."""
    topologies = (*(f"rigl{100 * sparsity:g}" for sparsity in SPARSITIES), "rigl")
    return [pair for topology in topologies for pair in at(f"{collection}/{topology}", (a, b))]


TOPOLOGY_PAIRS = [
    *((f"cifar10/{topology}/moon", f"cifar10/{topology}/plain") for topology in ("dense", "static95", "set", "rigl")),
    *((f"cifar10/rigl/{training}", f"cifar10/set/{training}") for training in ("plain", "moon")),
    *((f"cifar10/rigl95/{training}", f"cifar10/static95/{training}") for training in ("plain", "moon")),
]
SUMMARY_PAIRS = at(
    "cifar10/rigl",
    ("moon", "plain"), ("moon", "control"), ("control", "plain"), ("moon-logitnorm", "plain"),
    ("moon-logitnorm", "control"),
)  # fmt: skip
LENGTH_PAIRS = at(
    "cifar10-open/rigl95",
    ("control@300", "plain@300"), ("logitnorm+vote@300", "control@300"), ("moon-logitnorm@300", "logitnorm+vote@300"),
    ("moon-logitnorm@300", "control@300"), ("moon-logitnorm@300", "plain@300"),
)  # fmt: skip
_SIX = (
    ("moon", "plain"), ("moon", "control"), ("control", "plain"), ("logitnorm+vote", "control"),
    ("moon-logitnorm", "control"), ("moon-logitnorm", "logitnorm+vote"),
)  # fmt: skip
REPEATED_PAIRS = at("cifar10-open/rigl95", *_SIX) + at("cifar10-open/rigl99", *_SIX)
RIVALS = ("logitnorm", "vos", "dac", "mixup", "label-smoothing", "eow-softmax")
RIVAL_PAIRS = at(
    "cifar10/rigl95",
    *((name, "plain") for name in (*RIVALS, "cigl-alone")),
    *((f"{name}+vote", "control") for name in RIVALS),
    ("cigl", "control"),
)
MOON_PAIRS = at("cifar10/rigl95", ("moon", "control"), ("moon", "logitnorm+vote"), ("moon", "cigl"))
NORMALISED_PAIRS = at(
    "cifar10/rigl95",
    ("logitnorm+vote", "logitnorm"), ("moon-logitnorm", "logitnorm+vote"), ("moon-logitnorm", "control"),
)  # fmt: skip
LOGITNORM_PAIRS = at_every_sparsity("cifar10", "logitnorm", "plain")
VOTE_PAIRS = at_every_sparsity("cifar10", "logitnorm+vote", "logitnorm")
ADDED_PAIRS = at_every_sparsity("cifar10-open", "moon-logitnorm", "logitnorm+vote")
ABLATIONS = ("without-lm", "without-at-final", "without-at-initial", "without-vt")
PARAMETERS = (
    *(f"w_f={w}" for w in ("0.1", "0.5", "2", "4")),
    *(f"T_e={epochs}" for epochs in (1, 2, 3)),
    *(f"votes={votes}" for votes in (2, 5, 10)),
)
ABLATION_PAIRS = at("cifar10/rigl95", *((name, "moon") for name in (*ABLATIONS, *PARAMETERS)))
FRONTIER_PAIRS = at(
    "cifar10-open/rigl95",
    ("quick", "plain"), ("quick", "control"), ("quick", "logitnorm+vote"), ("quick", "moon-logitnorm"),
    ("quick@300", "plain@300"), ("quick@300", "control@300"), ("quick@300", "logitnorm+vote@300"),
    ("quick@300", "moon-logitnorm@300"), ("quick@300", "quick"),
)  # fmt: skip
TIN100_PAIRS = at(
    "tin100/rigl95",
    ("control", "plain"), ("moon", "plain"), ("moon", "control"), ("logitnorm+vote", "control"),
    ("moon-logitnorm", "control"), ("moon-logitnorm", "logitnorm+vote"),
)  # fmt: skip
QUICK_TIN100_PAIRS = at("tin100/rigl95", *(("quick", name) for name in ("plain", "control", "logitnorm+vote")))

_THREE = ("moon", "plain"), ("moon", "control"), ("control", "plain")
MNIST_PAIRS = at("mnist/dense", *_THREE) + at("mnist/rigl95", *_THREE)
LENET_PAIRS = at("mnist-lenet/dense", *_THREE)

# What a first trial with 100 classes made claims about.
FIRST_TRIAL_PAIRS = at(
    "tin100/rigl95",
    ("control", "plain"), ("moon", "plain"), ("moon", "control"), ("logitnorm+vote", "plain"),
    ("logitnorm+vote", "control"), ("moon-logitnorm", "control"), ("moon-logitnorm", "logitnorm+vote"),
)  # fmt: skip

# The comparisons that are made together: Holm's correction counts those with three seeds or more.
FAMILIES: dict[str, list[Pair]] = {
    "summary": _pairs(SUMMARY_PAIRS, NINE),
    "topologies": _pairs(TOPOLOGY_PAIRS, NINE),
    "repeated": _pairs(REPEATED_PAIRS, [*NINE, "fisher near", "fisher far"]),
    "length": _pairs(LENGTH_PAIRS, [*NEAR_AND_FAR, "chosen near", "chosen far", "accuracy", "ece-scaled"]),
    "rivals": _pairs(RIVAL_PAIRS, NINE),
    "moon": _pairs(MOON_PAIRS, NINE),
    "normalised": _pairs(NORMALISED_PAIRS, NINE),
    "logitnorm": _pairs(LOGITNORM_PAIRS, WITHOUT_ENERGY),
    "vote": _pairs(VOTE_PAIRS, WITHOUT_ENERGY),
    "added": _pairs(ADDED_PAIRS, [*NEAR_AND_FAR, "fisher near", "fisher far", "accuracy", "ece-scaled"]),
    "ablations": _pairs(ABLATION_PAIRS, NINE),
    "frontier": _pairs(FRONTIER_PAIRS, WITH_CHOSEN),
    "quick-tin100": _pairs(QUICK_TIN100_PAIRS, [*WITH_FISHER, "fdbd near", "fdbd far"]),
    "first-trial": _pairs(FIRST_TRIAL_PAIRS, ["msp near", "msp far"]),
    "mnist": _pairs(MNIST_PAIRS, NINE),
    "mnist-lenet": _pairs(LENET_PAIRS, [*NINE, "fisher near", "fisher far"]),
    "tin100": _pairs(TIN100_PAIRS, [*NEAR_AND_FAR, "fisher near", "fisher far", "accuracy", "ece-scaled"]),
}

PRIMARY = tomllib.loads((Path(__file__).parent / "primary.toml").read_text(encoding="utf-8"))  # fixed before the runs
FAMILIES |= {name: _pairs(map(tuple, each["pairs"]), each["metrics"]) for name, each in PRIMARY.items()}


def test_family(kept: Kept, name: str) -> dict[Pair, Comparison]:
    """Every comparison of a family for which two networks share a seed, with Holm's correction."""
    if name not in FAMILIES:
        raise ValueError(f"there is no family of comparisons '{name}'{did_you_mean(name, FAMILIES)}")
    return _tested(kept, name)


def tested(kept: Kept, family: str, pair: Pair) -> Comparison:
    """One comparison of a family."""
    if pair not in FAMILIES.get(family, [pair]):
        raise ValueError(f"{pair.a} - {pair.b}, {pair.metric}: is not in the family '{family}'")
    if (found := test_family(kept, family).get(pair)) is None:
        raise ValueError(f"{pair.a} - {pair.b}, {pair.metric}: the two networks share no seed")
    return found


@cache
def _tested(kept: Kept, name: str) -> dict[Pair, Comparison]:
    values = {
        pair: pair_by_seed(kept.values(pair.a, pair.metric), kept.values(pair.b, pair.metric))
        for pair in FAMILIES[name]
    }
    shared = {pair: Pairs(*found, not pair.metric.startswith("ece")) for pair, found in values.items() if found[0]}
    return dict(zip(shared, compare(shared.values()), strict=True))


def read_source(kept: Kept, source: str) -> float:
    """The number that a source names, see the top of this file; a ValueError if it is malformed or not kept."""
    words = source.split()
    networks = [words.pop(0)] if words and "/" in words[0] else []
    if networks and len(words) > 1 and words[0] == "-":
        collection, _, rest = networks[0].partition("/")
        place = f"{collection}/{rest.partition('/')[0]}"  # COLLECTION/TOPOLOGY
        networks.append(words[1] if words[1].count("/") > 1 else f"{place}/{words[1]}")
        words = words[2:]
    statistic = words.pop() if words and (words[-1] in _STATISTICS or words[-1].startswith("p:")) else "mean"
    metric = " ".join(words)
    if not networks or not metric:
        raise ValueError(f"'{source}' is not of the form NETWORK [- NETWORK] METRIC [STATISTIC] (results/sources.py)")
    _check_metric(metric)
    for network in networks:
        if network.count("/") < 2 or not kept.has(network):
            raise ValueError(f"'{source}': no run of '{network}' is kept{_similar(kept, network)}")
    values = [kept.values(network, metric) for network in networks]
    for network, found in zip(networks, values, strict=True):
        if not found:
            raise ValueError(f"'{source}': '{metric}' of {network} was not measured in the kept runs")
    found = _statistic(kept, source, networks, metric, values, statistic)
    if isnan(found):
        raise ValueError(f"'{source}': there are too few seeds")
    return found


def _statistic(
    kept: Kept, source: str, networks: list[str], metric: str, values: list[dict[int, float]], statistic: str
) -> float:
    if len(values) == 1:
        if statistic not in _STATISTICS:
            raise ValueError(f"'{source}': only a difference of two networks has a p-value")
        return _STATISTICS[statistic](list(values[0].values()))
    if any(network.partition("/")[0] in PAPER for network in networks):
        if statistic != "mean":
            raise ValueError(f"'{source}': the paper's numbers have no seeds, so only the difference is known")
        return mean(values[0].values()) - mean(values[1].values())
    a, b = pair_by_seed(*values)
    if not a:
        raise ValueError(f"'{source}': the two networks share no seed")
    if statistic.startswith("p:"):
        return tested(kept, statistic[2:], Pair(networks[0], networks[1], metric)).p
    return _STATISTICS[statistic]([x - y for x, y in zip(a, b, strict=True)])


def _check_metric(metric: str) -> None:
    kind, _, part = metric.partition(" ")
    if not (part and kind in (*DETECTORS, *P_UNKNOWN)) and metric not in KNOWN_METRICS:
        suggestion = did_you_mean(kind, [*DETECTORS, *KNOWN_METRICS, *P_UNKNOWN])
        raise ValueError(
            f"there is no metric '{metric}'{suggestion}; use DETECTOR near, DETECTOR far or {KNOWN_METRICS}"
        )


def _similar(kept: Kept, network: str) -> str:
    collection, _, name = network.partition("/")
    return "" if collection in PAPER else did_you_mean(name, kept.collection(collection))
