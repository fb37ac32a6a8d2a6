"""How much a number depends on the choice of the test images, from the kept scores of single images.

The variance of AUROC is DeLong's: that of what each image contributes to it. Averages over seeds and sets, and
differences between networks, are averages and differences of these contributions, because all networks see the same
images.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
from kept import Kept
from numpy.typing import NDArray

from moon.score.files import KNOWN


def over_images(kept: Kept, network: str, metric: str, reference: str | None = None) -> tuple[float, float]:
    """A metric in percent, averaged over the seeds of a network, and its standard error over the images.

    The error says nothing about other seeds. The value of `reference`, another network, is subtracted.
    """
    found = contributions(kept, network, metric)
    if reference is not None:
        if kept.runs(network).keys() != kept.runs(reference).keys():
            raise ValueError(f"{network} and {reference} do not have the same seeds, so they cannot be paired")
        others = contributions(kept, reference, metric)
        found = [ours - theirs for ours, theirs in zip(found, others, strict=True)]
    return float(found[0].mean()), sqrt(sum(np.var(each, ddof=1) / len(each) for each in found))


def ends(value: float, error: float) -> tuple[float, float]:
    """The ends of a 95% interval."""
    return value - 1.96 * error, value + 1.96 * error


def contributions(kept: Kept, network: str, metric: str) -> list[NDArray]:
    """What each image contributes to a metric, in percent: known images, and those of each unknown set.

    The mean over the known images is the metric, averaged over seeds and sets.
    """
    detector, _, part = metric.partition(" ")
    runs = kept.runs(network)
    if not runs:
        raise ValueError(f"no run of '{network}' is kept")
    sets = next(iter(runs.values())).summary.get(part, [part])
    known, unknown = [], [[] for _ in sets]
    for run in runs.values():
        levels = kept.levels(run)
        if metric == "accuracy":
            known.append(levels["correct"])
            continue
        if missing := {f"{detector}/{name}" for name in (KNOWN, *sets)} - levels.keys():
            raise ValueError(f"{run.folder.name}: has no scores of images of {', '.join(sorted(missing))}")
        ours, theirs = levels[f"{detector}/{KNOWN}"], [levels[f"{detector}/{name}"] for name in sets]
        known += [_shares_below(ours, other) for other in theirs]
        for found, other in zip(unknown, theirs, strict=True):
            found.append(1 - _shares_below(other, ours))
    return [100 * np.mean(known, 0), *(100 * np.mean(found, 0) / len(sets) for found in unknown if found)]


def _shares_below(of: NDArray, among: NDArray) -> NDArray:
    """The share of the second levels that are below each of the first; ties count half."""
    counts = np.bincount(among, minlength=256)
    return ((np.cumsum(counts) - counts / 2) / len(among))[of]
