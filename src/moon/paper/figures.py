"""Draw the paper's figures from tables of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import pi
from pathlib import Path
from statistics import mean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING

import numpy as np

from moon.metrics import interval
from moon.paper.names import display_name, percent
from moon.paper.number import Number
from moon.paper.table import PaperTable
from moon.results.plotting import COLOURS, LINES, dots_and_means, legend_below, panels, save, styled
from moon.run.folder import class_names
from moon.score.files import read_arrays

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLAIN, OURS, DENSE = COLOURS[0], COLOURS[1], "black"
_MEANS = ("near", "far", "")


@styled
def draw(table: PaperTable, folder: Path, target: Path) -> None:
    """Draw the figure of a table and write it as SVG and PNG.

    Args:
        table: A table whose item is a figure.
        folder: The folder of the run folders.
        target: The path to write, without suffix.
    """
    # A benchmark without unknown sets may leave nothing to draw.
    figure = DRAWINGS[table.item.draw](table, folder) if table.numbers else panels(1, 1)[0]
    departures = table.departures and f"differences from the paper: {table.departures}"
    lines = [line for line in (table.title, departures, table.missing_runs) if line]
    characters = min(100, int(12 * figure.get_figwidth()))  # that fit into the width at this font size
    figure.suptitle("\n".join(part for line in lines for part in wrap(line, characters)), fontsize=10)
    save(figure, *(target.with_name(f"{target.name}.{suffix}") for suffix in ("svg", "png")))


def _select(numbers: Iterable[Number], **wanted: str) -> list[Number]:
    """The numbers whose set or fields of their measurement have these values."""
    return [
        n
        for n in numbers
        if all(getattr(n if f == "set" else n.measurement, f) == value for f, value in wanted.items())
    ]


def _bar(axis: Axes, x: float, number: Number, width: float, colour: str, label: str) -> None:
    """Draw a bar with its standard deviation, or a cross if nothing was measured."""
    values = number.values
    if values:
        error = stdev(values) if len(values) > 1 else None
        axis.bar(x, mean(values), width, yerr=error, color=colour, label=label, error_kw={"lw": 1})
    else:
        axis.plot(x, 0, "x", color=colour, transform=axis.get_xaxis_transform(), clip_on=False)


def _zoom(axis: Axes, numbers: Iterable[Number]) -> None:
    """Limit the y-axis to the range of the values instead of starting from zero."""
    values = [value for number in numbers for value in number.values]
    if values:
        margin = max(0.5, 0.15 * (max(values) - min(values)))
        axis.set_ylim(min(values) - 3 * margin, min(100.5, max(values) + margin))


def sparsity_bars(table: PaperTable, _: Path) -> Figure:
    """Draw plain and MOON as bars at each sparsity, and the dense network as a line; near above far."""
    sparse = [n for n in table.numbers if n.measurement.topology != "dense"]
    methods = list(dict.fromkeys((n.measurement.data, n.measurement.topology) for n in sparse))
    groups = list(dict.fromkeys(n.set for n in sparse))
    figure, axes = panels(len(groups), len(methods))
    for row, group in enumerate(groups):
        for column, (data, topology) in enumerate(methods):
            axis = axes[row, column]
            shown = _select(sparse, data=data, topology=topology, set=group)
            dense = _select(table.numbers, data=data, topology="dense", set=group)
            _zoom(axis, [*shown, *dense])
            sparsities = list(dict.fromkeys(percent(n.measurement.sparsity) for n in shown))
            for number in shown:
                ours = number.measurement.training != "plain"
                x = sparsities.index(percent(number.measurement.sparsity)) + (0.2 if ours else -0.2)
                _bar(axis, x, number, 0.4, OURS if ours else PLAIN, "MOON" if ours else "sparse training")
            for number in dense:
                if number.ours:
                    axis.axhline(mean(number.values), color=DENSE, lw=1.2, label="dense training")
            axis.set_xticks(range(len(sparsities)), sparsities)
            axis.set_title(f"{display_name(data)}, {display_name(topology)}, {group} unknown")
            axis.set_ylabel("AUROC %" if column == 0 else "")
    legend_below(figure, axes)
    return figure


def set_bars(table: PaperTable, _: Path) -> Figure:
    """Draw plain and MOON as bars for each unknown set, one panel per metric."""
    metrics = list(dict.fromkeys(n.measurement.metric for n in table.numbers))
    figure, axes = panels(1, len(metrics), width=4.2)
    for axis, metric in zip(axes[0], metrics, strict=True):
        shown = _select(table.numbers, metric=metric)
        names = list(dict.fromkeys(n.set for n in shown))
        _zoom(axis, shown)
        for number in shown:
            ours = number.measurement.training != "plain"
            x = names.index(number.set) + (0.2 if ours else -0.2)
            _bar(axis, x, number, 0.4, OURS if ours else PLAIN, display_name(number.measurement.training))
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(display_name(metric))
    legend_below(figure, axes)
    return figure


def radar_charts(table: PaperTable, _: Path) -> Figure:
    """Draw MOON against each rival as radar charts of FPR-95, one axis per unknown set; smaller is better."""
    measurements = list(dict.fromkeys(n.measurement for n in table.numbers))
    ours = next(measurement for measurement in measurements if measurement.training == "moon")
    rivals = [measurement for measurement in measurements if measurement != ours]
    names = list(dict.fromkeys(n.set for n in table.numbers if n.set not in _MEANS))
    value = {(n.measurement, n.set): mean(n.values) if n.ours else np.nan for n in table.numbers}
    angles = [2 * pi * i / len(names) for i in range(len(names))]
    figure, axes = panels(1, len(rivals), subplot_kw={"projection": "polar"}, height=3.2)
    for axis, rival in zip(axes[0], rivals, strict=True):
        for measurement, colour, style in ((rival, PLAIN, "--"), (ours, OURS, "-")):
            radii = [value[measurement, name] for name in names]
            is_scaled = measurement.detector == "tempscale"
            label = "temperature scaling" if is_scaled else display_name(measurement.training)
            axis.plot([*angles, angles[0]], [*radii, radii[0]], style, color=colour, label=label, lw=1.8)
            axis.fill(angles, radii, color=colour, alpha=0.12)
        axis.set_xticks(angles, names)
        axis.set_rlim(0)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)
    return figure


def sparsity_curves(table: PaperTable, _: Path) -> Figure:
    """Draw accuracy and ECE of plain and MOON over sparsity with 95% intervals, one column per data set."""
    data = list(dict.fromkeys(n.measurement.data for n in table.numbers))
    metrics = list(dict.fromkeys(n.measurement.metric for n in table.numbers))
    figure, axes = panels(len(metrics), len(data), width=3.6)
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
            axis.set_title(display_name(name))
            axis.set_xlabel("sparsity %")
            axis.set_ylabel(display_name(metric) if column == 0 else "")
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
    if any(n.paper is not None for n in numbers):
        axes[0, -1].plot([], [], "x", color="gray", label="the paper's mean")
    legend_below(figure, axes, columns=5)
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
        figure, axes = panels(1, 1)
        axes[0, 0].text(0.5, 0.5, f"not run yet: {name}", ha="center", va="center", wrap=True)
        return figure
    values, labels = known["first_component"], known["labels"]
    classes, names = np.unique(labels)[:20], class_names(folder / name)
    columns = 5 if len(classes) > 4 else len(classes)
    figure, axes = panels(-(-len(classes) // columns), columns, width=1.9, height=1.5, sharex=True)
    for axis, label in zip(axes.flat, classes, strict=False):
        axis.hist(values[labels == label], bins=40, color=PLAIN)
        axis.set_title(names[label] if names else f"class {label}", fontsize=8)
        axis.set_yticks([])
    for axis in axes.flat[len(classes) :]:
        axis.set_axis_off()
    return figure


# The functions that `Item.draw` names. `draw` calls them with our style active.
DRAWINGS: dict[str, Callable[[PaperTable, Path], Figure]] = {
    "sparsity_bars": sparsity_bars,
    "set_bars": set_bars,
    "radar_charts": radar_charts,
    "sparsity_curves": sparsity_curves,
    "training_dots": training_dots,
    "component_histograms": component_histograms,
}
