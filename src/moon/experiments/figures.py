"""Pictures of scored runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moon.experiments.score import KNOWN, Scores
from moon.metrics import auroc

# Okabe and Ito's colours, told apart by colour-blind eyes; known first.
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#F0E442")


def known_percentile(known: NDArray, scores: NDArray) -> NDArray:
    """Where scores stand among the known ones: the percentage of known inputs that score lower, ties halved."""
    known = np.sort(known)
    below, not_above = (np.searchsorted(known, scores, side) for side in ("left", "right"))
    return 50 * (below + not_above) / len(known)


def score_histograms(methods: Mapping[str, Scores], detector: str, path: Path, title: str) -> None:
    """Known against unknown scores, a panel a method, each unknown set with its AUROC.

    The axis is the percentile among known scores, which suits every detector: known inputs are flat by construction,
    and what is left of the line at 5 is rejected when 95% of the known are accepted.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(methods), figsize=(5.2 * len(methods), 3.8), sharey=True, squeeze=False, layout="constrained"
    )
    edges = np.linspace(0, 100, 21)
    for axis, (method, scores) in zip(axes[0], methods.items(), strict=True):
        known = scores[detector][KNOWN]
        for colour, (name, values) in zip(cycle(COLOURS), scores[detector].items(), strict=False):
            where = known_percentile(known, values)
            weights = np.full(len(values), 100 / len(values))
            if name == KNOWN:
                axis.hist(where, edges, weights=weights, color=colour, alpha=0.35, label="known")
            else:
                label = f"{name}, AUROC {100 * auroc(known, values):.1f}%"
                axis.hist(where, edges, weights=weights, histtype="step", lw=1.8, color=colour, label=label)
        axis.axvline(5, color="black", lw=1, ls="--")
        axis.annotate(" accepted →", (5, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
        axis.set_title(method)
        axis.set_xlim(0, 100)
        axis.set_xlabel(f"{detector} score, as percentile among known inputs")
        axis.legend(frameon=False, loc="center right", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("share of images, %")
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)
