"""The tables about candidates for a better network on images that are neither trained on nor tested, and its test."""

from __future__ import annotations

from collections.abc import Mapping

from cells import (
    COLUMNS,
    Blocks,
    at_trainings,
    cell,
    differences_table,
    goals_table,
    label,
    markdown,
    networks_table,
)
from images import ends, over_images
from kept import Kept
from sources import FRONTIER_PAIRS, PRIMARY, QUICK_TIN100_PAIRS

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
SHOWN = ("accuracy %", "ECE, scaled", "MSP", "KNN", "Fisher")
TESTED = (
    "plain",
    "control",
    "logitnorm+vote",
    "plain@300",
    "control@300",
    "logitnorm+vote@300",
    "moon-logitnorm@300",
    "quick",
    "quick@300",
)
TITLES = {
    "moon-logitnorm@300": "`best-1`: MOON normalised, 300 epochs",
    "quick": "**`quick`**, 100 epochs",
    "quick@300": "**`best-2`**, 300 epochs",
}
TESTED_99 = ("plain", "control", "moon", "logitnorm+vote", "moon-logitnorm", "quick@300")
NAMES = {"msp": "MSP", "ebo": "EBO", "knn": "KNN", "fisher": "Fisher"}
GOALS = {"fisher near": 94.0, "fisher far": 98.0, "accuracy": 95.3, "ece-scaled": 0.008}
GOALS_99 = {"fisher near": 91.0, "fisher far": 96.5, "accuracy": 93.0}


@BLOCKS.add
def candidates(kept: Kept) -> str:
    rows = []
    for network, title in CANDIDATES.items():
        found = [cell(kept, f"{PLACE}/{network}", *COLUMNS[name]) for name in SHOWN]
        rows.append([title, str(len(kept.runs(f"{PLACE}/{network}"))), *found])
    return markdown(["training", "n", *SHOWN], rows)


@BLOCKS.add
def candidates_differences(kept: Kept) -> str:
    """Candidates minus the reference, one seed each, with intervals over the images."""
    metrics = {"Fisher near": "fisher near", "Fisher far": "fisher far", "accuracy %": "accuracy"}
    names = [name for name in CANDIDATES if name != REFERENCE and len(kept.runs(f"{PLACE}/{name}")) == 1]
    rows = [
        [CANDIDATES[name], *(_change(kept, f"{PLACE}/{name}", metric) for metric in metrics.values())] for name in names
    ]
    return markdown(["minus the reference", *metrics], rows)


def _change(kept: Kept, network: str, metric: str) -> str:
    value, error = over_images(kept, network, metric, f"{PLACE}/{REFERENCE}")
    return f"{signed(value, 1)} {interval_text(*ends(value, error), 1, sign=True)}"


@BLOCKS.add
def frontier_test(kept: Kept) -> str:
    """Networks at 95% on the test images, near with `tin-open`; the last column is near with `tin`."""
    rows = []
    for training in TESTED:
        opened, closed = (f"{collection}/rigl95/{training}" for collection in ("cifar10-open", "cifar10"))
        found = [cell(kept, opened, *COLUMNS[name]) for name in SHOWN]
        count = str(len(kept.runs(opened)))
        rows.append([TITLES.get(training, label(training)), count, *found, cell(kept, closed, *COLUMNS["Fisher"])])
    return markdown(["training", "n", *SHOWN, "Fisher, `tin`"], rows)


@BLOCKS.add
def frontier_test_99(kept: Kept) -> str:
    columns = ["MSP", "EBO", "KNN", "Fisher", *SHOWN[:2]]
    return networks_table(kept, ["training"], at_trainings("cifar10-open/rigl99", TESTED_99), columns)


@BLOCKS.add
def frontier_differences(kept: Kept) -> str:
    return differences_table(kept, "frontier", FRONTIER_PAIRS, [*SHOWN[2:], "chosen detector", *SHOWN[:2]])


@BLOCKS.add
def quick_tin100(kept: Kept) -> str:
    rows = at_trainings("tin100/rigl95", ("plain", "control", "logitnorm+vote", "quick"))
    return networks_table(kept, ["training"], rows, [*SHOWN[2:], "FDBD", *SHOWN[:2]])


@BLOCKS.add
def quick_tin100_differences(kept: Kept) -> str:
    return differences_table(kept, "quick-tin100", QUICK_TIN100_PAIRS, [*SHOWN[2:], "FDBD", *SHOWN[:2]])


@BLOCKS.add
def sparsity(kept: Kept) -> str:
    """The same recipes dense and sparse, near and far in columns of their own."""
    columns = {
        "accuracy %": ("accuracy", 1), "ECE, scaled": ("ece-scaled", 3),
        **{f"{name} {group}": (f"{key} {group}", 1) for key, name in NAMES.items() for group in ("near", "far")},
    }  # fmt: skip
    rows = []
    for training in ("plain", "control", "moon", "quick@300"):
        for topology, density in (("dense", "100%"), ("rigl95", "5%"), ("rigl99", "1%")):
            network = f"cifar10-open/{topology}/{training}"
            found = [cell(kept, network, [metric], digits) for metric, digits in columns.values()]
            rows.append([label(training), density, str(len(kept.runs(network))), *found])
    return markdown(["training", "weights", "n", *columns], rows)


@BLOCKS.add
def sparsity_primary(kept: Kept) -> str:
    pairs = [(a, b) for a, b in PRIMARY["sparsity-cost"]["pairs"]]
    columns = ["Fisher", "accuracy %"]
    return differences_table(
        kept, "sparsity-cost", pairs, columns, "5% - 100% of the weights", lambda pair: label(pair[0].split("/")[2])
    )


@BLOCKS.add
def frontier_goals(kept: Kept) -> str:
    return _goals(kept, "cifar10-open/rigl95/quick@300", GOALS)


@BLOCKS.add
def frontier_goals_99(kept: Kept) -> str:
    return _goals(kept, "cifar10-open/rigl99/quick@300", GOALS_99)


def _goals(kept: Kept, network: str, goals: Mapping[str, float]) -> str:
    def images(metric: str) -> str:
        return MISSING if metric == "ece-scaled" else interval_text(*ends(*over_images(kept, network, metric)), 2)

    return goals_table(goals, kept.by_seed(network), images)
