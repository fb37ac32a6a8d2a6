"""Pictures of runs. Each function makes a matplotlib figure; `save` writes it, `svg` gives it as text for a page."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.metrics import auroc, ece
from moon.score.score import KNOWN, Scores

# Okabe and Ito's colours, told apart by colour-blind eyes; known first.
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#F0E442")
LINES = ("-", "--", "-.", ":")
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "moon",  # the same picture is the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def panels(rows: int, columns: int, width: float = 3.2, height: float = 2.8, **settings: Any) -> tuple[Any, Any]:
    """A figure and its axes, (rows, columns) of them."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(_STYLE)
    size = (width * columns + 0.4, height * rows + 0.5)
    return plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained", **settings)


def save(figure: Any, *paths: Path) -> None:
    """Write the figure, in the format of each path's suffix, and let go of it."""
    import matplotlib.pyplot as plt

    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def svg(figure: Any, called: str) -> str:
    """The figure as an <svg> element that can stand in a page; `called` is what a screen reader says."""
    import matplotlib.pyplot as plt

    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    plt.close(figure)
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return element.replace("<svg", f'<svg role="img" aria-label="{called}"', 1)


def legend_below(figure: Any, axes: Any, columns: int = 4) -> None:
    """One legend for all panels, a word once."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if entries:
        columns = min(len(entries), columns)
        figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=columns, frameon=False)


def known_percentile(known: NDArray, scores: NDArray) -> NDArray:
    """Where scores stand among the known ones: the percentage of known inputs that score lower, ties halved."""
    known = np.sort(known)
    below, not_above = (np.searchsorted(known, scores, side) for side in ("left", "right"))
    return 50 * (below + not_above) / len(known)


def _method_panels(count: int, **settings: Any) -> tuple[Any, Any]:
    """A panel a method, at most three in a row; those that are not needed are empty."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure, axes = panels(rows, columns, **settings)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes


def score_histograms(methods: Mapping[str, Scores], detector: str, title: str = "") -> Any:
    """Known against unknown scores, a panel a method, each unknown set with its AUROC.

    The axis is the percentile among known scores, which suits every detector: known inputs are flat by construction,
    and what is left of the line at 5 is rejected when 95% of the known are accepted.
    """
    figure, axes = _method_panels(len(methods), width=4.6, height=3.4, sharey=True)
    edges = np.linspace(0, 100, 21)
    for axis, (method, scores) in zip(axes.flat, methods.items(), strict=False):
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
        axis.legend(frameon=False, loc="center right", fontsize=8)
    axes[0, 0].set_ylabel("share of images, %")
    if title:
        figure.suptitle(title)
    return figure


def roc(methods: Mapping[str, Scores], detector: str) -> Any:
    """The share of known inputs accepted over that of unknown ones, a panel a method, a line a set."""
    figure, axes = _method_panels(len(methods), width=3.4, height=3.2, sharey=True)
    for axis, (method, scores) in zip(axes.flat, methods.items(), strict=False):
        known = np.sort(scores[detector][KNOWN])
        sets = {name: values for name, values in scores[detector].items() if name != KNOWN}
        for colour, style, (name, values) in zip(cycle(COLOURS[1:]), cycle(LINES), sets.items(), strict=False):
            unknown = np.sort(values)
            limits = np.concatenate(([np.inf], np.quantile(np.concatenate((known, unknown)), np.linspace(1, 0, 400))))
            accepted = [100 * (1 - np.searchsorted(part, limits, "left") / len(part)) for part in (unknown, known)]
            axis.plot(*accepted, style, color=colour, lw=1.6, label=name)
        axis.plot([0, 100], [0, 100], color="gray", lw=0.8)
        axis.axhline(95, color="black", lw=0.8, ls=":")
        axis.set_title(method)
        axis.set_xlabel("unknown accepted %")
    axes[0, 0].set_ylabel("known accepted %")
    legend_below(figure, axes)
    return figure


def reliability(methods: Mapping[str, Mapping[str, NDArray]], bins: int = 15) -> Any:
    """Accuracy over confidence, a panel a method, with the share of images in each bin of confidence."""
    figure, axes = _method_panels(len(methods), width=3.2, height=3.0, sharey=True)
    edges = np.linspace(0, 1, bins + 1)
    for axis, (method, known) in zip(axes.flat, methods.items(), strict=False):
        correct, confidence = known["prediction"] == known["labels"], known["confidence"]
        place = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)  # bins closed on the right
        counts = np.bincount(place, minlength=bins)
        full = counts > 0
        right = np.bincount(place, correct, minlength=bins)[full] / counts[full]
        middle = np.bincount(place, confidence, minlength=bins)[full] / counts[full]
        axis.bar(edges[:-1], counts / counts.sum(), 1 / bins, align="edge", color=COLOURS[5], alpha=0.4, label="images")
        axis.plot([0, 1], [0, 1], color="gray", lw=0.8)
        axis.plot(middle, right, "o-", color=COLOURS[0], ms=4, label="accuracy")
        axis.set_title(f"{method}\nECE {ece(confidence, correct):.4f}")
        axis.set_xlabel("confidence")
        axis.set_xlim(0, 1)
        axis.set_ylim(0, 1.02)
    axes[0, 0].set_ylabel("accuracy")
    legend_below(figure, axes)
    return figure


def dots_and_means(axis: Any, points: Sequence[tuple[float, float]], style: str, colour: str, label: str) -> None:
    """A dot a run, a line through the means."""
    xs = sorted({x for x, _ in points})
    means = [np.mean([y for other, y in points if other == x]) for x in xs]
    axis.plot([x for x, _ in points], [y for _, y in points], ".", color=colour, alpha=0.6)
    axis.plot(xs, means, style, color=colour, label=label, lw=1.6)


def over_sparsity(points: Iterable[tuple[str, float, str, float]], measure: str) -> Any:
    """(method, sparsity %, near or far, value): a panel a group, a dot a run, lines through their means."""
    points = list(points)
    groups = list(dict.fromkeys(group for _, _, group, _ in points))
    methods = list(dict.fromkeys(method for method, _, _, _ in points))
    figure, axes = panels(1, len(groups), width=4.2, height=3.0)
    for axis, group in zip(axes[0], groups, strict=True):
        for colour, style, method in zip(cycle(COLOURS), cycle(LINES), methods, strict=False):
            here = [(x, y) for m, x, g, y in points if (m, g) == (method, group)]
            dots_and_means(axis, here, style, colour, method)
        axis.set_title(f"{group} unknown")
        axis.set_xlabel("sparsity %")
        axis.set_ylabel(f"{measure} AUROC %")
    legend_below(figure, axes)
    return figure


def over_epochs(logs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Any:
    """What the log of training has: validation accuracy, w, and the probability of the unknown output."""
    wanted = {
        "val_accuracy": "validation accuracy",
        "w": "w of the loss",
        "p_unknown_correct": "p(unknown), known and right",
        "p_unknown_wrong": "p(unknown), known and wrong",
        "p_unknown_unknown": "p(unknown), unknown images",
    }
    there = [key for key in wanted if any(line.get(key) is not None for log in logs.values() for line in log)]
    figure, axes = _method_panels(len(there), width=3.4, height=2.4)
    for axis, key in zip(axes.flat, there, strict=False):
        for colour, style, (method, log) in zip(cycle(COLOURS), cycle(LINES), logs.items(), strict=False):
            lines = [(line["epoch"] + 1, line[key]) for line in log if line.get(key) is not None]
            if lines:
                axis.plot(*zip(*lines, strict=True), style, color=colour, label=method, lw=1.6)
        axis.set_title(wanted[key])
        axis.set_xlabel("epoch")
    legend_below(figure, axes)
    return figure


def layers(densities: Mapping[str, Mapping[str, float]]) -> Any:
    """The density of each layer, a line a method."""
    names = list(dict.fromkeys(layer for of in densities.values() for layer in of))
    figure, axes = panels(1, 1, width=max(4.5, 0.32 * len(names)), height=3.2)
    axis = axes[0, 0]
    for colour, style, (method, of) in zip(cycle(COLOURS), cycle(LINES), densities.items(), strict=False):
        axis.plot([names.index(n) for n in of], [100 * d for d in of.values()], style, marker="o", ms=4,
                  color=colour, label=method)  # fmt: skip
    axis.set_xticks(range(len(names)), [n.removesuffix(".weight") for n in names], rotation=60, ha="right", fontsize=7)
    axis.set_ylabel("weights kept %")
    axis.set_yscale("log")
    legend_below(figure, axes)
    return figure
