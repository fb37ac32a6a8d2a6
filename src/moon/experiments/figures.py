"""Pictures of scored runs."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import cycle
from pathlib import Path

import numpy as np

from moon.experiments.score import KNOWN, Scores
from moon.metrics import auroc

# Okabe and Ito's colours, told apart by colour-blind eyes; known first.
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#F0E442")


def score_histograms(methods: Mapping[str, Scores], detector: str, path: Path, title: str) -> None:
    """Known against unknown scores, a panel a method on one scale, each unknown set with its AUROC."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(methods), figsize=(5.2 * len(methods), 3.8), sharex=True, sharey=True, squeeze=False,
        layout="constrained",
    )  # fmt: skip
    everything = np.concatenate([s for scores in methods.values() for s in scores[detector].values()])
    edges = np.linspace(everything.min(), everything.max(), 41)
    for axis, (method, scores) in zip(axes[0], methods.items(), strict=True):
        known = scores[detector][KNOWN]
        for colour, (name, values) in zip(cycle(COLOURS), scores[detector].items(), strict=False):
            weights = np.full(len(values), 100 / len(values))
            if name == KNOWN:
                axis.hist(values, edges, weights=weights, color=colour, alpha=0.45, label="known")
            else:
                label = f"{name}, AUROC {100 * auroc(known, values):.1f} %"
                axis.hist(values, edges, weights=weights, histtype="step", lw=1.8, color=colour, label=label)
        axis.set_title(method)
        axis.set_xlabel(f"{detector} score (higher is more known)")
        axis.legend(frameon=False, loc="upper left", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].set_ylabel("share of images, %")
    figure.suptitle(title)
    figure.savefig(path, dpi=150)
    plt.close(figure)
