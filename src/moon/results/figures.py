"""Figures of runs: score histograms, ROC curves, calibration, training curves and densities.

Each function returns a `matplotlib.figure.Figure`; `moon.results.plotting` writes it to a file or into a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from math import ceil, floor, log10
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moon.metrics import auroc, ece
from moon.results.plotting import COLOURS, LINES, ONE_RUN, dots_and_means, legend_below, method_panels, panels, styled
from moon.score.files import KNOWN, Scores

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The quantities of a training log that are drawn, with the titles of their panels.
LOGGED = {
    "val_accuracy": "validation accuracy",
    "w": "w of the loss",
    "p_unknown_correct": "p(unknown), known, correct",
    "p_unknown_wrong": "p(unknown), known, wrong",
    "p_unknown_unknown": "p(unknown), unknown images",
}


def known_percentile(known: NDArray, scores: NDArray) -> NDArray:
    """Return the percentage of known inputs that score lower than each of some scores; ties count half."""
    known = np.sort(known)
    below, not_above = (np.searchsorted(known, scores, side) for side in ("left", "right"))
    return 50 * (below + not_above) / len(known)


@styled
def score_histograms(methods: Mapping[str, Scores], detector: str, title: str = "") -> Figure:
    """Draw histograms of known and unknown scores, one panel per method, each unknown set with its AUROC.

    The x-axis is the percentile among known scores, so that all detectors share one scale. The known scores are
    uniform by construction. If 95% of the known inputs are accepted, everything left of the line at 5 is rejected.
    """
    figure, axes = method_panels(len(methods), width=4.6, height=3.4, sharey=True)
    edges = np.linspace(0, 100, 21)
    for axis, (method, scores) in zip(axes.flat, methods.items(), strict=False):
        known = scores[detector][KNOWN]
        for colour, (name, values) in zip(cycle(COLOURS), scores[detector].items(), strict=False):
            percentile = known_percentile(known, values)
            weights = np.full(len(values), 100 / len(values))
            if name == KNOWN:
                axis.hist(percentile, edges, weights=weights, color=colour, alpha=0.35, label="known")
            else:
                label = f"{name}, AUROC {100 * auroc(known, values):.1f}%"
                axis.hist(percentile, edges, weights=weights, histtype="step", lw=1.8, color=colour, label=label)
        axis.axvline(5, color="black", lw=1, ls="--")
        axis.annotate(" accepted →", (5, 1), xycoords=("data", "axes fraction"), va="top", fontsize=9)
        axis.set_title(method)
        axis.set_xlim(0, 100)
        axis.set_xlabel(f"{detector} score, as percentile among known inputs")
        axis.legend(frameon=False, loc="center right", fontsize=8)
    axes[0, 0].set_ylabel("share of images, %")
    if title:
        figure.suptitle(title)
    return figure


@styled
def roc_curves(methods: Mapping[str, Scores], detector: str) -> Figure:
    """Draw the share of known inputs accepted over that of unknown ones, one panel per method and a line per set."""
    figure, axes = method_panels(len(methods), width=3.4, height=3.2, sharey=True)
    for axis, (method, scores) in zip(axes.flat, methods.items(), strict=False):
        known = np.sort(scores[detector][KNOWN])
        sets = {name: values for name, values in scores[detector].items() if name != KNOWN}
        for colour, style, (name, values) in zip(cycle(COLOURS[1:]), cycle(LINES), sets.items(), strict=False):
            unknown = np.sort(values)
            quantiles = np.quantile(np.concatenate((known, unknown)), np.linspace(1, 0, 400))
            thresholds = np.concatenate(([np.inf], quantiles))
            accepted = [100 * (1 - np.searchsorted(part, thresholds, "left") / len(part)) for part in (unknown, known)]
            axis.plot(*accepted, style, color=colour, lw=1.6, label=name)
        axis.plot([0, 100], [0, 100], color="gray", lw=0.8)
        axis.axhline(95, color="black", lw=0.8, ls=":")
        axis.set_title(method)
        axis.set_xlabel("unknown accepted %")
    axes[0, 0].set_ylabel("known accepted %")
    legend_below(figure, axes)
    return figure


@styled
def reliability_diagram(methods: Mapping[str, Mapping[str, NDArray]], bins: int = 15) -> Figure:
    """Draw accuracy over confidence, one panel per method, with the share of images in each bin as bars.

    Methods are the arrays `labels`, `prediction` and `confidence` of a run; bins are closed on the right.
    """
    figure, axes = method_panels(len(methods), width=3.2, height=3.0, sharey=True)
    edges = np.linspace(0, 1, bins + 1)
    for axis, (method, known) in zip(axes.flat, methods.items(), strict=False):
        correct, confidence = known["prediction"] == known["labels"], known["confidence"]
        bin_of = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
        counts = np.bincount(bin_of, minlength=bins)
        used = counts > 0
        accuracy = np.bincount(bin_of, correct, minlength=bins)[used] / counts[used]
        mean_confidence = np.bincount(bin_of, confidence, minlength=bins)[used] / counts[used]
        axis.bar(edges[:-1], counts / counts.sum(), 1 / bins, align="edge", color=COLOURS[5], alpha=0.4, label="images")
        axis.plot([0, 1], [0, 1], color="gray", lw=0.8)
        axis.plot(mean_confidence, accuracy, "o-", color=COLOURS[0], ms=4, label="accuracy")
        axis.set_title(f"{method}\nECE {ece(confidence, correct):.4f}")
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1.02)
    axes[0, 0].set_ylabel("accuracy")
    legend_below(figure, axes)
    return figure


@styled
def auroc_over_sparsity(points: Iterable[tuple[str, float, str, float]], detector: str) -> Figure:
    """Draw AUROC over sparsity: one panel for near and far, one dot per run, and a line through each method's means.

    Points are method, sparsity in percent, `near` or `far`, and AUROC in percent.
    """
    points = list(points)
    groups = list(dict.fromkeys(group for _, _, group, _ in points))
    methods = list(dict.fromkeys(method for method, _, _, _ in points))
    sparsities = sorted({sparsity for _, sparsity, _, _ in points})
    figure, axes = panels(1, len(groups), width=4.2, height=3.0, sharey=True)
    for axis, group in zip(axes[0], groups, strict=True):
        for index, (colour, style, method) in enumerate(zip(cycle(COLOURS), cycle(LINES), methods, strict=False)):
            offset = 0.05 * (index - (len(methods) - 1) / 2)  # so that dots do not cover each other
            selected = [(sparsities.index(x) + offset, y) for m, x, g, y in points if (m, g) == (method, group)]
            dots_and_means(axis, selected, style, colour, method)
        axis.set_xticks(range(len(sparsities)), [f"{sparsity:g}%" for sparsity in sparsities])
        axis.set_title(f"{group} unknown")
        axis.set_xlabel("sparsity")
    axes[0, 0].set_ylabel(f"{detector} AUROC %")
    axes[0, 0].plot([], [], ".", color="gray", alpha=0.6, label=ONE_RUN)
    rows = ceil((len(methods) + 1) / 5)
    legend_below(figure, axes, columns=ceil((len(methods) + 1) / rows))
    return figure


def logged_quantities(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return the keys of `LOGGED` that at least one training log has."""
    return [key for key in LOGGED if any(line.get(key) is not None for log in logs.values() for line in log)]


@styled
def training_curves(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Draw what a training log records over epochs, one panel per quantity that a log has."""
    recorded = logged_quantities(logs)
    figure, axes = method_panels(len(recorded), width=3.4, height=2.4)
    for axis, key in zip(axes.flat, recorded, strict=False):
        for colour, style, (method, log) in zip(cycle(COLOURS), cycle(LINES), logs.items(), strict=False):
            points = [(line["epoch"] + 1, line[key]) for line in log if line.get(key) is not None]
            if points:
                axis.plot(*zip(*points, strict=True), style, color=colour, label=method, lw=1.6)
        axis.set_title(LOGGED[key])
        axis.set_xlabel("epoch")
    legend_below(figure, axes)
    return figure


@styled
def layer_densities(densities: Mapping[str, Mapping[str, float]]) -> Figure:
    """Draw the density of each layer, one line per method."""
    names = list(dict.fromkeys(layer for by_layer in densities.values() for layer in by_layer))
    figure, axes = panels(1, 1, width=max(4.5, 0.32 * len(names)), height=3.2)
    axis = axes[0, 0]
    for colour, style, (method, by_layer) in zip(cycle(COLOURS), cycle(LINES), densities.items(), strict=False):
        x, y = [names.index(name) for name in by_layer], [100 * density for density in by_layer.values()]
        axis.plot(x, y, style, marker="o", ms=4, color=colour, label=method)
    ticks = [name.removesuffix(".weight") for name in names]
    axis.set_xticks(range(len(names)), ticks, rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("non-zero weights %")
    axis.set_yscale("log")
    _label_plainly(axis, [100 * density for by_layer in densities.values() for density in by_layer.values()])
    legend_below(figure, axes)
    return figure


def _label_plainly(axis: Axes, percentages: Sequence[float]) -> None:
    """Label a logarithmic axis of percentages with numbers such as 2, 5 and 10 in place of powers of ten."""
    from matplotlib.ticker import FixedLocator, NullLocator, StrMethodFormatter

    positive = [value for value in percentages if value > 0]
    if not positive:
        return
    powers = range(floor(log10(min(positive))), ceil(log10(max(positive))) + 1)
    digits = (1, 2, 5) if len(powers) <= 4 else (1,)
    axis.yaxis.set_major_locator(FixedLocator([digit * 10.0**power for power in powers for digit in digits]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
