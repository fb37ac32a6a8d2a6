"""The tables about candidates for a better network on images that are neither trained on nor tested, and its test."""

from __future__ import annotations

from cells import (
    COLUMNS,
    Blocks,
    cell,
    differences_table,
    goals_table,
    label,
    markdown,
    near_and_far,
    networks_table,
)
from images import ends, over_images
from kept import Kept
from sources import PRIMARY

from moon.paper.spec import SPARSITIES
from moon.results.format import MISSING, interval_text, signed

BLOCKS = Blocks()
PLACE = "cifar10-search-2"
REFERENCE = "rigl95/logitnorm+vote"
CANDIDATES = {
    REFERENCE: "LogitNorm + vote, the reference",
    "rigl95/rotpred+logitnorm,copies=1": "+ [RotPred](../methods/rotpred.md), one rotated copy of each image",
    "rigl95/logitnorm+vote,augment=trivial": "+ [TrivialAugment](../methods/augment.md)",
    "rigl95/logitnorm+distill,teachers=3": "+ [distillation](../methods/distill.md) from the three dense networks",
    "rigl95/logitnorm+distill,augment=trivial,teachers=3": "+ distillation and TrivialAugment",
    "rigl95/t2fnorm": "[T2FNorm](../methods/t2fnorm.md) + vote in place of LogitNorm",
    "rigl98.7/logitnorm+vote,width=2": "twice the width, 98.7% sparse",
    "rigl95/quick": "**`quick`**: + RotPred, TrivialAugment and a warm-up",
    "dense/logitnorm+vote": "dense: LogitNorm + vote",
    "dense/rotpred+logitnorm,copies=1,augment=trivial": "dense: + RotPred and TrivialAugment",
}
WEIGHTS = {"dense": "100%"} | {f"rigl{100 * sparsity:g}": f"{1 - sparsity:.0%}" for sparsity in SPARSITIES}
GOALS = {"fisher near": 94.0, "fisher far": 98.0, "accuracy": 95.3, "ece-scaled": 0.008}


@BLOCKS.add
def candidates(kept: Kept) -> str:
    """Candidates, and those of one seed minus the reference, with intervals over the images."""
    metrics = {"Fisher near": "fisher near", "Fisher far": "fisher far", "accuracy %": "accuracy"}
    compared = ("Fisher near", "Fisher far")
    rows = []
    for name, title in CANDIDATES.items():
        network = f"{PLACE}/{name}"
        is_compared = name != REFERENCE and len(kept.runs(network)) == 1
        found = [cell(kept, network, *COLUMNS[column]) for column in metrics]
        found += [_change(kept, network, metrics[column]) if is_compared else "" for column in compared]
        rows.append([title, str(len(kept.runs(network))), *found])
    return markdown(["training", "n", *metrics, *(f"{column}: minus the reference" for column in compared)], rows)


def _change(kept: Kept, network: str, metric: str) -> str:
    value, error = over_images(kept, network, metric, f"{PLACE}/{REFERENCE}")
    return f"{signed(value, 1)} {interval_text(*ends(value, error), 1, sign=True)}"


@BLOCKS.add
def sparsity(kept: Kept) -> str:
    """The same recipes dense and sparse, near and far in columns of their own."""
    rows = [
        ([label(training), weights], network)
        for training in ("plain", "control", "moon", "quick@300")
        for topology, weights in WEIGHTS.items()
        if kept.runs(network := f"cifar10-open/{topology}/{training}")
    ]
    columns = ["accuracy %", "ECE, scaled", *near_and_far("MSP", "EBO", "KNN", "Fisher")]
    return networks_table(kept, ["training", "weights"], rows, columns)


@BLOCKS.add
def sparsity_primary(kept: Kept) -> str:
    return _minus_dense(kept, "sparsity-cost")


@BLOCKS.add
def sparsity_levels(kept: Kept) -> str:
    return _minus_dense(kept, "sparsity-levels")


def _minus_dense(kept: Kept, question: str) -> str:
    """The primary comparisons of sparse networks with the dense one of the same training."""

    def name(pair: tuple[str, str]) -> str:
        _, topology, training = pair[0].split("/")
        return f"{label(training)}, {WEIGHTS[topology]}"

    pairs = [(a, b) for a, b in PRIMARY[question]["pairs"]]
    return differences_table(kept, question, pairs, ["Fisher", "accuracy %"], "minus 100% of the weights", name)


@BLOCKS.add
def frontier_goals(kept: Kept) -> str:
    network = "cifar10-open/rigl95/quick@300"

    def images(metric: str) -> str:
        return MISSING if metric == "ece-scaled" else interval_text(*ends(*over_images(kept, network, metric)), 2)

    return goals_table(GOALS, lambda metric: [*kept.values(network, metric).values()], images)
