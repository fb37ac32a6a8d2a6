"""The tables about candidates for a better network on images that are neither trained on nor tested, and its test."""

from __future__ import annotations

import numpy as np
from cells import COLUMNS, Blocks, cell, differences_table, goals_table, label, markdown
from kept import Kept
from numpy.typing import NDArray
from sources import FRONTIER_PAIRS

from moon.results.format import interval_text, signed
from moon.score.files import KNOWN

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
)
TITLES = {"moon-logitnorm@300": "`best`: MOON normalised, 300 epochs", "quick": "**`quick`**"}
GOALS = {"fisher near": 94.0, "fisher far": 98.0, "accuracy": 95.3, "ece-scaled": 0.008}
_RESAMPLES = 1000


def _levels(kept: Kept, network: str, detector: str, sets: list[str]) -> list[NDArray]:
    """The levels of the scores of one network on known and on unknown images."""
    (run,) = kept.runs(network).values()
    with np.load(kept.results / PLACE / "scores" / f"{run.folder.name}.npz") as arrays:
        return [arrays[f"{detector}/{name}"] for name in sets]


def _auroc(known: NDArray, unknown: NDArray) -> float:
    """AUROC of levels, where unknown images should have the lower ones; ties count half."""
    ours, theirs = (np.bincount(levels, minlength=256) for levels in (known, unknown))
    below = np.cumsum(theirs) - theirs
    return float(ours @ (below + theirs / 2) / (len(known) * len(unknown)))


def difference_over_images(kept: Kept, network: str, detector: str, unknown: str) -> tuple[float, float, float]:
    """AUROC of a network minus that of the reference in points, with a 95% bootstrap interval over the images.

    Both networks are evaluated on the same images in each resample. The interval says nothing about other seeds.
    """
    pairs = [_levels(kept, f"{PLACE}/{name}", detector, [KNOWN, unknown]) for name in (network, REFERENCE)]
    random = np.random.default_rng(0)

    def difference(known: NDArray | slice, other: NDArray | slice) -> float:
        own, reference = (_auroc(levels[0][known], levels[1][other]) for levels in pairs)
        return 100 * (own - reference)

    sizes = [len(levels) for levels in pairs[0]]
    values = [difference(*(random.integers(0, size, size) for size in sizes)) for _ in range(_RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975)).tolist()
    return difference(slice(None), slice(None)), low, high


@BLOCKS.add
def candidates(kept: Kept) -> str:
    rows = []
    for network, title in CANDIDATES.items():
        found = [cell(kept, f"{PLACE}/{network}", *COLUMNS[name]) for name in SHOWN]
        runs = kept.runs(f"{PLACE}/{network}")
        change = ""
        if network != REFERENCE and len(runs) == 1:
            middle, low, high = difference_over_images(kept, network, "fisher", "cifar100-held")
            change = f"{signed(middle, 1)} {interval_text(low, high, 1, sign=True)}"
        rows.append([title, str(len(runs)), *found, change])
    return markdown(["training", "n", *SHOWN, "Fisher near, minus the reference"], rows)


@BLOCKS.add
def frontier_test(kept: Kept) -> str:
    """Networks at 95% on the test images; near with `tin-open` where it was scored, and with `tin`."""
    rows = []
    for training in TESTED:
        places = [f"{place}/rigl95/{training}" for place in ("cifar10-open", "cifar10")]
        opened, closed = places
        known = [cell(kept, next(filter(kept.runs, places)), *COLUMNS[name]) for name in SHOWN[:2]]
        found = [cell(kept, opened, *COLUMNS[name]) for name in SHOWN[2:]]
        count = len(kept.runs(opened) or kept.runs(closed))
        row = [
            TITLES.get(training, label(training)),
            str(count),
            *known,
            *found,
            cell(kept, closed, *COLUMNS["Fisher"]),
        ]
        rows.append(row)
    return markdown(["training", "n", *SHOWN, "Fisher, `tin`"], rows)


@BLOCKS.add
def frontier_differences(kept: Kept) -> str:
    return differences_table(kept, "frontier", FRONTIER_PAIRS, ["MSP", "FDBD", "KNN", "accuracy %", "ECE, scaled"])


@BLOCKS.add
def frontier_goals(kept: Kept) -> str:
    return goals_table(kept, "cifar10-open/rigl95/quick", GOALS)
