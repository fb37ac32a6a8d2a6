"""The tables about candidates for a better network on images that are neither trained on nor tested, and its test."""

from __future__ import annotations

import numpy as np
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
    subtracted,
)
from kept import Kept
from numpy.typing import NDArray
from sources import FRONTIER_PAIRS, QUICK_TIN100_PAIRS

from moon.results.format import MISSING, interval_text, signed
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
    "quick@300",
)
TITLES = {
    "moon-logitnorm@300": "`best-1`: MOON normalised, 300 epochs",
    "quick": "**`quick`**, 100 epochs",
    "quick@300": "**`best-2`**, 300 epochs",
}
GOALS = {"fisher near": 94.0, "fisher far": 98.0, "accuracy": 95.3, "ece-scaled": 0.008}
_RESAMPLES = 1000


def _kept_arrays(kept: Kept, network: str) -> list[dict[str, NDArray]]:
    """The kept scores of each seed of a network, and `correct`, for each image."""
    place = kept.results / network.partition("/")[0] / "scores"
    found = []
    for run in kept.runs(network).values():
        with np.load(place / f"{run.folder.name}.npz") as arrays:
            found.append(dict(arrays))
    return found


def _auroc(known: NDArray, unknown: NDArray) -> float:
    """AUROC of levels, where unknown images should have the lower ones; ties count half."""
    ours, theirs = (np.bincount(levels, minlength=256) for levels in (known, unknown))
    below = np.cumsum(theirs) - theirs
    return float(ours @ (below + theirs / 2) / (len(known) * len(unknown)))


def over_images(kept: Kept, network: str, metric: str, reference: str | None = None) -> tuple[float, float, float]:
    """A metric in percent, averaged over the seeds of a network, with a 95% bootstrap interval over the images.

    All networks are evaluated on the same images in each resample. The interval says nothing about other seeds.

    Args:
        kept: The kept runs.
        network: The network.
        metric: `accuracy`, or `DETECTOR GROUP`, the AUROC on the near or far sets.
        reference: A network whose value is subtracted.

    Returns:
        The value, and the ends of the interval.
    """
    detector, _, group = metric.partition(" ")
    summary = next(iter(kept.runs(network).values())).summary
    sets = [KNOWN, *(summary[group] if group else [])]
    networks = [_kept_arrays(kept, name) for name in (network, reference) if name]

    def value(seeds: list[dict[str, NDArray]], index: dict[str, NDArray]) -> float:
        found = []
        for arrays in seeds:
            if group:
                known, *unknown = (arrays[f"{detector}/{name}"][index[name]] for name in sets)
                found += [_auroc(known, levels) for levels in unknown]
            else:
                found.append(np.unpackbits(arrays["correct"])[index[KNOWN]].mean())
        return 100 * float(np.mean(found))

    def difference(index: dict[str, NDArray]) -> float:
        own, *other = (value(seeds, index) for seeds in networks)
        return own - sum(other)

    sizes = {name: summary["images"][name] for name in sets}
    random = np.random.default_rng(0)
    resamples = [{name: random.integers(0, size, size) for name, size in sizes.items()} for _ in range(_RESAMPLES)]
    low, high = np.quantile([difference(index) for index in resamples], (0.025, 0.975)).tolist()
    return difference({name: np.arange(size) for name, size in sizes.items()}), low, high


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
    middle, low, high = over_images(kept, network, metric, f"{PLACE}/{REFERENCE}")
    return f"{signed(middle, 1)} {interval_text(low, high, 1, sign=True)}"


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
    def name(pair: tuple[str, str]) -> str:
        return f"{subtracted(pair)} ({'`tin-open`' if pair[0].startswith('cifar10-open') else '`tin`'})"

    columns = [*SHOWN[2:], "chosen detector", *SHOWN[:2]]
    return differences_table(kept, "frontier", FRONTIER_PAIRS, columns, name=name)


@BLOCKS.add
def quick_tin100(kept: Kept) -> str:
    rows = at_trainings("tin100/rigl95", ("plain", "control", "logitnorm+vote", "quick"))
    return networks_table(kept, ["training"], rows, [*SHOWN[2:], "FDBD", *SHOWN[:2]])


@BLOCKS.add
def quick_tin100_differences(kept: Kept) -> str:
    return differences_table(kept, "quick-tin100", QUICK_TIN100_PAIRS, [*SHOWN[2:], "FDBD", *SHOWN[:2]])


@BLOCKS.add
def frontier_goals(kept: Kept) -> str:
    network = "cifar10-open/rigl95/quick@300"

    def images(metric: str) -> str:
        return MISSING if metric == "ece-scaled" else interval_text(*over_images(kept, network, metric)[1:], 2)

    return goals_table(kept, network, GOALS, images)
