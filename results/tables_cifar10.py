"""The tables about CIFAR-10, one function each.

`<!-- table sparsities -->` on a page is followed by what the function `sparsities` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from cells import (
    FIVE,
    FOUR,
    LONG,
    MEASURED,
    Blocks,
    at_sparsities,
    at_trainings,
    difference,
    differences_table,
    label,
    label_without_epochs,
    line_about_tests,
    markdown,
    metric_name,
    networks_table,
)
from kept import Kept
from sources import (
    ABLATION_PAIRS,
    ABLATIONS,
    ADDED_PAIRS,
    LOGITNORM_PAIRS,
    MOON_PAIRS,
    NINE,
    NORMALISED_PAIRS,
    PARAMETERS,
    REPEATED_PAIRS,
    RIVAL_PAIRS,
    RIVALS,
    SUMMARY_PAIRS,
    TOPOLOGY_PAIRS,
    VOTE_PAIRS,
    Pair,
    read_source,
    test_family,
)

from moon.paper.spec import SPARSITIES
from moon.results.format import interval_text, signed

BLOCKS = Blocks()
FIRST, OPEN = "cifar10", "cifar10-open"  # the first runs, near with `tin`; and those scored with `tin-open`
SIX = (*FIVE[:3], "logitnorm", *FIVE[3:])
# EBO was not scored with the fitted temperature in every first run with normalised logits.
WITHOUT_ENERGY = ("MSP", "KNN", "FDBD", "accuracy %", "ECE, scaled")
ORDER = [*FOUR, *(f"{name}{vote}" for name in RIVALS for vote in ("", "+vote")), "cigl-alone", "cigl"]


@BLOCKS.add
def cifar10(kept: Kept) -> str:
    columns = ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"]
    rows = []
    for training in (*FIVE, "quick", *LONG, "quick@300"):
        epochs = training.partition("@")[2] or "100"
        rows.append(([epochs, label_without_epochs(training)], f"{OPEN}/rigl95/{training}"))
    return networks_table(kept, ["epochs", "training"], rows, columns)


@BLOCKS.add
def sparsities(kept: Kept) -> str:
    columns = ["MSP", "the paper's MSP", *MEASURED[1:]]
    return networks_table(kept, ["sparsity", "training"], at_sparsities("cifar10", SIX), columns)


@BLOCKS.add
def summary_differences(kept: Kept) -> str:
    tested = test_family(kept, "summary")
    names = [" - ".join(label(network.split("/")[2]) for network in pair) for pair in SUMMARY_PAIRS]
    rows = []
    for metric in NINE:
        digits = 3 if metric.startswith("ece") else 2
        rows.append(
            [metric_name(metric), *(difference(tested.get(Pair(*pair, metric)), digits) for pair in SUMMARY_PAIRS)]
        )
    return f"{markdown(['', *names], rows)}\n\n{line_about_tests(tested)}"


TOPOLOGIES = {"dense": "dense", "static95": "static 95%", "rigl95": "RigL 95%", "set": "SET", "rigl": "RigL"}


@BLOCKS.add
def topologies(kept: Kept) -> str:
    networks = {name: TOPOLOGIES[name] for name in ("dense", "static95")}
    networks |= {f"set{100 * sparsity:g}": f"SET {sparsity:.0%}" for sparsity in SPARSITIES}
    rows = [
        ([name, label(training)], f"cifar10/{topology}/{training}")
        for topology, name in networks.items()
        for training in ("plain", "moon")
    ]
    return networks_table(kept, ["", "training"], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def topology_differences(kept: Kept) -> str:
    """Two trainings of one topology, or one training of two topologies."""

    def name(pair: tuple[str, str]) -> str:
        (topology, training), (other, of_other) = (network.split("/")[1:] for network in pair)
        if topology == other:
            return f"{TOPOLOGIES[topology]}: {label(training)} - {label(of_other)}"
        return f"{label(training)}: {TOPOLOGIES[topology]} - {TOPOLOGIES[other]}"

    return differences_table(kept, "topologies", TOPOLOGY_PAIRS, MEASURED, name=name)


@BLOCKS.add
def repeated_differences(kept: Kept) -> str:
    def name(pair: tuple[str, str]) -> str:
        a, b = (network.split("/") for network in pair)
        return f"{_sparsity(pair)}: {label(a[2])} - {label(b[2])}"

    return differences_table(kept, "repeated", REPEATED_PAIRS, [*MEASURED[:3], "Fisher", *MEASURED[3:]], name=name)


@BLOCKS.add
def loss_effects(kept: Kept) -> str:
    """MOON minus control at 95 and 99%, in the first runs and in the repeated ones."""
    alone = "cifar100-part"
    metrics = ["msp near", f"msp {alone}", "ebo near", f"ebo {alone}", "ebo far", "knn near", f"knn {alone}", "ece"]
    rows = []
    for metric in metrics:
        digits, texts = 3 if metric == "ece" else 1, []
        for topology, collection in product(("rigl95", "rigl99"), (FIRST, OPEN)):
            source = f"{collection}/{topology}/moon - control {metric}"
            middle, low, high = (read_source(kept, f"{source} {which}") for which in ("mean", "low", "high"))
            texts.append(f"{signed(middle, digits)} {interval_text(low, high, digits, sign=True)}")
        rows.append([metric_name(metric).replace(alone, f"near, `{alone}` alone"), *texts])
    runs = ("first runs, near with `tin`", "repeated runs, near with `tin-open`")
    return markdown(["", *(f"{sparsity}, {each}" for sparsity in ("95%", "99%") for each in runs)], rows)


@BLOCKS.add
def ablations(kept: Kept) -> str:
    rows = at_trainings("cifar10/rigl95", ("moon", *ABLATIONS, *PARAMETERS))
    return networks_table(kept, [""], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def ablation_differences(kept: Kept) -> str:
    return differences_table(kept, "ablations", ABLATION_PAIRS, MEASURED)


@BLOCKS.add
def rivals(kept: Kept) -> str:
    rows = at_trainings("cifar10/rigl95", ORDER)
    return networks_table(kept, [""], rows, ["MSP", "the paper's MSP", *MEASURED[1:]])


@BLOCKS.add
def rival_differences(kept: Kept) -> str:
    return differences_table(kept, "rivals", RIVAL_PAIRS, MEASURED)


@BLOCKS.add
def moon_differences(kept: Kept) -> str:
    return differences_table(kept, "moon", MOON_PAIRS, MEASURED)


@BLOCKS.add
def normalised_differences(kept: Kept) -> str:
    return differences_table(kept, "normalised", NORMALISED_PAIRS, MEASURED)


@BLOCKS.add
def added_to_logitnorm(kept: Kept) -> str:
    return _by_sparsity(kept, "added", ADDED_PAIRS, ["MSP", "EBO", "KNN", "Fisher", "accuracy %", "ECE, scaled"])


@BLOCKS.add
def vote_on_logitnorm(kept: Kept) -> str:
    return _by_sparsity(kept, "vote", VOTE_PAIRS, WITHOUT_ENERGY)


@BLOCKS.add
def logitnorm_differences(kept: Kept) -> str:
    return _by_sparsity(kept, "logitnorm", LOGITNORM_PAIRS, WITHOUT_ENERGY)


def _by_sparsity(kept: Kept, family: str, pairs: Sequence[tuple[str, str]], columns: Sequence[str]) -> str:
    return differences_table(kept, family, pairs, columns, heading="sparsity", name=_sparsity)


def _sparsity(pair: tuple[str, str]) -> str:
    """The sparsity of a pair of networks, such as 90%."""
    percent = pair[0].split("/")[1].removeprefix("rigl")
    return f"{percent}%" if percent else "mean of the four"
