"""The tables about CIFAR-10, one function each.

`<!-- table sparsities -->` on a page is followed by what the function `sparsities` returns.
"""

from __future__ import annotations

from cells import (
    FIVE,
    FOUR,
    LONG,
    Blocks,
    at_sparsities,
    at_trainings,
    difference,
    label,
    label_without_epochs,
    line_about_tests,
    markdown,
    metric_name,
    near_and_far,
    networks_table,
)
from kept import Kept
from sources import NINE, RIVALS, SUMMARY_PAIRS, Pair, test_family

BLOCKS = Blocks()
FIRST, OPEN = "cifar10", "cifar10-open"  # the first runs, near with `tin`; and those scored with `tin-open`
ORDER = [*FOUR, *(f"{name}{vote}" for name in RIVALS for vote in ("", "+vote")), "cigl-alone", "cigl"]


@BLOCKS.add
def cifar10(kept: Kept) -> str:
    columns = [*near_and_far("MSP", "EBO", "KNN", "Fisher"), "accuracy %"]
    rows = []
    for training in (*FIVE, "quick", *LONG, "quick@300"):
        epochs = training.partition("@")[2] or "100"
        rows.append(([epochs, label_without_epochs(training)], f"{OPEN}/rigl95/{training}"))
    return networks_table(kept, ["epochs", "training"], rows, columns)


@BLOCKS.add
def sparsities(kept: Kept) -> str:
    columns = [*near_and_far("MSP", "EBO"), "accuracy %"]
    return networks_table(kept, ["sparsity", "training"], at_sparsities("cifar10", FIVE[:4]), columns)


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


@BLOCKS.add
def rivals(kept: Kept) -> str:
    rows = at_trainings("cifar10/rigl95", ORDER)
    return networks_table(kept, [""], rows, [*near_and_far("MSP"), "accuracy %"])
