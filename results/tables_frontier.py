"""The table about candidates for the next `best`, compared on images that are neither trained on nor tested."""

from __future__ import annotations

import numpy as np
from cells import Blocks, cell, markdown
from kept import Kept
from numpy.typing import NDArray

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
    "dense/logitnorm+vote": "dense: LogitNorm + vote",
}
COLUMNS = {"accuracy %": (("accuracy",), 1), "ECE, scaled": (("ece-scaled",), 3)}
COLUMNS |= {name: ((f"{key} near", f"{key} far"), 1) for name, key in {"MSP": "msp", "KNN": "knn"}.items()}
COLUMNS |= {"Fisher": (("fisher near", "fisher far"), 1)}
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
    for network, label in CANDIDATES.items():
        found = [cell(kept, f"{PLACE}/{network}", *column) for column in COLUMNS.values()]
        runs = kept.runs(f"{PLACE}/{network}")
        change = ""
        if network != REFERENCE and len(runs) == 1:
            middle, low, high = difference_over_images(kept, network, "fisher", "cifar100-held")
            change = f"{signed(middle, 1)} {interval_text(low, high, 1, sign=True)}"
        rows.append([label, str(len(runs)), *found, change])
    return markdown(["training", "n", *COLUMNS, "Fisher near, minus the reference"], rows)
