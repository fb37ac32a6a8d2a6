"""Draw the paper's figures from tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import cos, pi
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np

from moon.metrics import interval
from moon.paper.names import display_name, percent
from moon.paper.number import Number
from moon.paper.table import PaperTable
from moon.results.plotting import COLOURS, LINES, ONE_RUN, dots_and_means, legend_below, panels, save, styled
from moon.run.folder import class_names
from moon.score.files import read_arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, OURS, DENSE = COLOURS[0], COLOURS[1], "black"
INTERVAL = "95% t interval over seeds"
_PLAIN_AND_OURS = ("o", PLAIN), ("s", OURS)  # marker and colour
_MEANS = ("near", "far", "")


@styled
def draw(table: PaperTable, folder: Path, target: Path) -> None:
    """Draw the figure of a table and write it as SVG, PDF and PNG, without a caption: `to_markdown` has its text."""
    # A benchmark without unknown sets may leave nothing to draw.
    figure = DRAWINGS[table.item.draw](table, folder) if table.numbers else panels(1, 1)[0]
    save(figure, *(target.with_name(f"{target.name}.{suffix}") for suffix in ("svg", "pdf", "png")))


def _select(numbers: Iterable[Number], **wanted: str) -> list[Number]:
    """The numbers whose set or fields of their measurement have these values."""
    return [
        n
        for n in numbers
        if all(getattr(n if f == "set" else n.measurement, f) == value for f, value in wanted.items())
    ]


def _point(axis: Axes, x: float, number: Number, style: str, colour: str, label: str) -> None:
    """Draw the mean with its interval, or a cross on the x-axis if nothing was measured."""
    values = number.values
    if not values:
        axis.plot(x, 0, "x", color="gray", transform=axis.get_xaxis_transform(), clip_on=False, label="not measured")
        return
    low, high = interval(values) if len(values) > 1 else (mean(values), mean(values))
    distances = [[mean(values) - low], [high - mean(values)]]
    axis.errorbar(x, mean(values), distances, fmt=style, color=colour, capsize=2, label=label)


def sparsity_points(table: PaperTable, _: Path) -> Figure:
    """Draw plain and MOON at each sparsity, and the dense network as a line; near above far.

    Panels of the same data and unknown sets share the y-axis.
    """
    sparse = [n for n in table.numbers if n.measurement.topology != "dense"]
    methods = list(dict.fromkeys((n.measurement.data, n.measurement.topology) for n in sparse))
    groups = list(dict.fromkeys(n.set for n in sparse))
    figure, axes = panels(len(groups), len(methods), sharex=True)
    for row, group in enumerate(groups):
        first: dict[str, Axes] = {}
        for column, (data, topology) in enumerate(methods):
            axis = axes[row, column]
            if first.setdefault(data, axis) is not axis:
                axis.sharey(first[data])
            shown = _select(sparse, data=data, topology=topology, set=group)
            sparsities = list(dict.fromkeys(percent(n.measurement.sparsity) for n in shown))
            for number in shown:
                ours = number.measurement.training != "plain"
                x = sparsities.index(percent(number.measurement.sparsity)) + (0.1 if ours else -0.1)
                _point(axis, x, number, *_PLAIN_AND_OURS[ours], "MOON" if ours else "sparse training")
            for number in _select(table.numbers, data=data, topology="dense", set=group):
                if number.ours:
                    axis.axhline(mean(number.values), color=DENSE, lw=1.2, label="dense training, mean")
            if not any(number.ours for number in shown):
                axis.set_yticks([])
            axis.set_xticks(range(len(sparsities)), sparsities)
            axis.set_title(f"{display_name(data)}, {display_name(topology)}")
            axis.set_xlabel("sparsity" if row == len(groups) - 1 else "")
            axis.set_ylabel(f"AUROC %, {group} unknown" if first[data] is axis else "")
    _name_intervals(table, axes)
    legend_below(figure, axes, columns=5)
    return figure


def set_points(table: PaperTable, _: Path) -> Figure:
    """Draw plain and MOON for each unknown set, one panel per metric."""
    metrics = list(dict.fromkeys(n.measurement.metric for n in table.numbers))
    figure, axes = panels(1, len(metrics), width=4.2)
    for axis, metric in zip(axes[0], metrics, strict=True):
        shown = _select(table.numbers, metric=metric)
        names = list(dict.fromkeys(n.set for n in shown))
        for number in shown:
            ours = number.measurement.training != "plain"
            x = names.index(number.set) + (0.1 if ours else -0.1)
            _point(axis, x, number, *_PLAIN_AND_OURS[ours], display_name(number.measurement.training))
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(display_name(metric))
    _name_intervals(table, axes)
    legend_below(figure, axes)
    return figure


def _name_intervals(table: PaperTable, axes: Any) -> None:
    """Add an entry to the legend that says what error bars are, if there are any."""
    if any(len(number.values) > 1 for number in table.numbers):
        axes[0, 0].errorbar([], [], [], fmt="none", ecolor="gray", capsize=2, label=INTERVAL)


def radar_charts(table: PaperTable, _: Path) -> Figure:
    """Draw MOON against each rival as radar charts of mean FPR-95, one axis per unknown set; smaller is better."""
    measurements = list(dict.fromkeys(n.measurement for n in table.numbers))
    ours = next(measurement for measurement in measurements if measurement.training == "moon")
    rivals = [measurement for measurement in measurements if measurement != ours]
    names = list(dict.fromkeys(n.set for n in table.numbers if n.set not in _MEANS))
    value = {(n.measurement, n.set): mean(n.values) if n.ours else np.nan for n in table.numbers}
    angles = [2 * pi * i / len(names) for i in range(len(names))]
    figure, axes = panels(1, len(rivals), subplot_kw={"projection": "polar"}, sharey=True, width=3.8, height=3.6)
    for axis, rival in zip(axes[0], rivals, strict=True):
        for measurement, colour, style in ((rival, PLAIN, "--"), (ours, OURS, "-")):
            radii = [value[measurement, name] for name in names]
            is_scaled = measurement.detector == "tempscale"
            label = "temperature scaling" if is_scaled else display_name(measurement.training)
            label += "\n(not measured)" if np.isnan(radii).all() else ""
            axis.plot([*angles, angles[0]], [*radii, radii[0]], style, color=colour, label=label, lw=1.8)
            axis.fill(angles, radii, color=colour, alpha=0.12)
        axis.set_xticks(angles, names)
        for text, angle in zip(axis.get_xticklabels(), angles, strict=True):  # beside the circle, not across it
            text.set_ha("center" if abs(cos(angle)) < 0.1 else "left" if cos(angle) > 0 else "right")
        axis.set_rlim(0)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False, title=display_name("fpr95"))
    return figure


def sparsity_curves(table: PaperTable, _: Path) -> Figure:
    """Draw accuracy and ECE of plain and MOON over sparsity with 95% intervals, one column per data set."""
    data = list(dict.fromkeys(n.measurement.data for n in table.numbers))
    metrics = list(dict.fromkeys(n.measurement.metric for n in table.numbers))
    figure, axes = panels(len(metrics), len(data), width=3.6, sharex=True)
    has_interval = False
    for row, metric in enumerate(metrics):
        for column, name in enumerate(data):
            axis = axes[row, column]
            for training, colour, style in (("plain", PLAIN, "o--"), ("moon", OURS, "s-")):
                shown = [n for n in _select(table.numbers, metric=metric, data=name, training=training) if n.ours]
                x = [100 * n.measurement.sparsity for n in shown]
                axis.plot(x, [mean(n.values) for n in shown], style, color=colour, label=display_name(training))
                if shown and all(len(n.ours) > 1 for n in shown):
                    low, high = zip(*(interval(n.values) for n in shown), strict=True)
                    axis.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
                    has_interval = True
            axis.set_xticks(sorted({100 * n.measurement.sparsity for n in table.numbers}))
            if not any(n.ours for n in _select(table.numbers, metric=metric, data=name)):
                axis.set_yticks([])
            axis.set_title(display_name(name) if row == 0 else "")
            axis.set_xlabel("sparsity %" if row == len(metrics) - 1 else "")
            axis.set_ylabel(display_name(metric) if column == 0 else "")
    if has_interval:
        axes[0, 0].fill_between([], [], [], color="gray", alpha=0.4, lw=0, label=INTERVAL)
    legend_below(figure, axes)
    return figure


def training_dots(table: PaperTable, _: Path) -> Figure:
    """Draw AUROC of each training over sparsity, one column per detector, near above far.

    Each seed is a dot, a line connects the means, and a cross marks the paper's mean.
    """
    numbers = [n for n in table.numbers if n.measurement.detector]
    if not numbers:  # a benchmark without unknown sets
        return panels(1, 1)[0]
    detectors = list(dict.fromkeys(n.measurement.detector for n in numbers))
    groups = list(dict.fromkeys(n.set for n in numbers))
    trainings = list(dict.fromkeys(n.measurement.training for n in numbers))
    sparsities = sorted({n.measurement.sparsity for n in numbers})
    figure, axes = panels(len(groups), len(detectors), height=2.5, sharex=True, sharey="row")
    for row, group in enumerate(groups):
        axes[row, 0].set_ylabel(f"AUROC %, {group} unknown")
        for column, detector in enumerate(detectors):
            shown = _select(numbers, set=group, detector=detector)
            by_training = {training: _select(shown, training=training) for training in trainings}
            _dots(axes[row, column], by_training, sparsities)
    for axis, detector in zip(axes[0], detectors, strict=True):
        axis.set_title(detector.upper())
    for axis in axes[-1]:
        axis.set_xlabel("sparsity")
    axes[0, -1].plot([], [], ".", color="gray", alpha=0.6, label=ONE_RUN)
    if any(n.paper is not None for n in numbers):
        axes[0, -1].plot([], [], "x", color="gray", label="the paper's mean")
    legend_below(figure, axes, columns=6)
    return figure


def _dots(axis: Axes, trainings: Mapping[str, Sequence[Number]], sparsities: Sequence[float]) -> None:
    """Draw the numbers of each training over sparsity in one panel."""
    for index, (training, numbers) in enumerate(trainings.items()):
        colour, style = COLOURS[index % len(COLOURS)], LINES[index % len(LINES)]
        offset = 0.1 * (index - (len(trainings) - 1) / 2)  # so that dots do not cover each other
        shown = [(sparsities.index(n.measurement.sparsity) + offset, n) for n in numbers]
        dots_and_means(axis, [(x, y) for x, n in shown for y in n.values], style, colour, display_name(training))
        for x, n in shown:
            if n.paper is not None:
                axis.plot(x, n.paper[0], "x", color=colour, ms=6)
    axis.set_xticks(range(len(sparsities)), map(percent, sparsities))


def component_histograms(table: PaperTable, folder: Path) -> Figure:
    """Draw the distribution of the features' first principal component in each class, for the first seed."""
    name = table.run_names[0]
    if (known := read_arrays(folder / name, "known.npz")) is None:
        return panels(1, 1)[0]
    values, labels = known["first_component"], known["labels"]
    classes, names = np.unique(labels)[:20], class_names(folder / name)
    columns = 5 if len(classes) > 4 else len(classes)
    figure, axes = panels(-(-len(classes) // columns), columns, width=1.9, height=1.5, sharex=True, sharey=True)
    for axis, label in zip(axes.flat, classes, strict=False):
        axis.hist(values[labels == label], bins=40, color=PLAIN)
        axis.set_title(names[label] if names else f"class {label}", fontsize=8)
        axis.set_yticks([])
    for axis in axes.flat[len(classes) :]:
        axis.set_axis_off()
    figure.supxlabel("first principal component of the features", fontsize=9)
    return figure


# The functions that `Item.draw` names. `draw` calls them with our style active.
DRAWINGS: dict[str, Callable[[PaperTable, Path], Figure]] = {
    "sparsity_points": sparsity_points,
    "set_points": set_points,
    "radar_charts": radar_charts,
    "sparsity_curves": sparsity_curves,
    "training_dots": training_dots,
    "component_histograms": component_histograms,
}
