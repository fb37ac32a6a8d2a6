"""The figures of the paper, drawn from sheets of numbers. Each function takes a sheet and gives a matplotlib figure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import cycle
from math import pi
from pathlib import Path
from statistics import mean, stdev
from textwrap import wrap
from typing import Any

import numpy as np

from moon.metrics import interval
from moon.paper.spec import called
from moon.paper.table import Number, Sheet
from moon.results.figures import COLOURS, LINES, dots_and_means, legend_below, panels, save

PLAIN, OURS, DENSE = COLOURS[0], COLOURS[1], "black"
_MEANS = ("near", "far", "")


def draw(sheet: Sheet, folder: Path, target: Path) -> None:
    """Draw the sheet's figure as `<target>.svg` and `<target>.png`."""
    # Of a benchmark without unknown sets there may be nothing to draw.
    figure = DRAWINGS[sheet.item.draw](sheet, folder) if sheet.numbers else panels(1, 1)[0]
    missing = sheet.runs[1] - sheet.runs[0]
    notes = ["\n".join(wrap(f"not as in the paper: {sheet.differs}", 100))] * bool(sheet.differs)
    notes += [f"{missing} of {sheet.runs[1]} runs are missing"] * (missing > 0)
    figure.suptitle("\n".join([sheet.title, *notes]), fontsize=10)
    save(figure, *(target.with_name(f"{target.name}.{kind}") for kind in ("svg", "png")))


def _bar(axis: Any, x: float, number: Number, width: float, colour: str, label: str) -> None:
    """A bar with its deviation, or a cross where nothing was run."""
    values = list(number.ours.values())
    if values:
        error = stdev(values) if len(values) > 1 else None
        axis.bar(x, mean(values), width, yerr=error, color=colour, label=label, error_kw={"lw": 1})
    else:
        axis.plot(x, axis.get_ylim()[0], "x", color=colour)


def _tight(axis: Any, numbers: Iterable[Number]) -> None:
    """Show the range that is there: AUROCs do not start from zero."""
    values = [value for number in numbers for value in number.ours.values()]
    if values:
        room = max(0.5, 0.15 * (max(values) - min(values)))
        axis.set_ylim(min(values) - 3 * room, min(100.5, max(values) + room))


def _sparsity(number: Number) -> str:
    return f"{100 * number.line.sparsity:g}%"


def bars(sheet: Sheet, _: Path) -> Any:
    """Sparse training and MOON at each sparsity, with the dense network as a line; near above far."""
    sparse = [n for n in sheet.numbers if n.line.topology != "dense"]
    places = list(dict.fromkeys((n.line.data, n.line.topology) for n in sparse))
    groups = list(dict.fromkeys(n.set for n in sparse))
    figure, axes = panels(len(groups), len(places))
    for row, group in enumerate(groups):
        for column, (data, topology) in enumerate(places):
            axis = axes[row, column]
            here = [n for n in sparse if (n.line.data, n.line.topology, n.set) == (data, topology, group)]
            sparsities = list(dict.fromkeys(map(_sparsity, here)))
            dense = [n for n in sheet.numbers if (n.line.topology, n.line.data, n.set) == ("dense", data, group)]
            _tight(axis, [*here, *dense])
            for number in here:
                ours = number.line.training != "plain"
                label = "MOON" if ours else "sparse training"
                x = sparsities.index(_sparsity(number)) + (0.2 if ours else -0.2)
                _bar(axis, x, number, 0.4, OURS if ours else PLAIN, label)
            for number in dense:
                if number.ours:
                    axis.axhline(mean(number.ours.values()), color=DENSE, lw=1.2, label="dense training")
            axis.set_xticks(range(len(sparsities)), sparsities)
            axis.set_title(f"{called(data)}, {called(topology)}, {group} unknown")
            axis.set_ylabel("AUROC %" if column == 0 else "")
    legend_below(figure, axes)
    return figure


def set_bars(sheet: Sheet, _: Path) -> Any:
    """Plain and MOON on each unknown set, a panel a metric."""
    metrics = list(dict.fromkeys(n.line.metric for n in sheet.numbers))
    figure, axes = panels(1, len(metrics), width=4.2)
    for axis, metric in zip(axes[0], metrics, strict=True):
        here = [n for n in sheet.numbers if n.line.metric == metric]
        names = list(dict.fromkeys(n.set for n in here))
        _tight(axis, here)
        for number in here:
            ours = number.line.training != "plain"
            x = names.index(number.set) + (0.2 if ours else -0.2)
            _bar(axis, x, number, 0.4, OURS if ours else PLAIN, called(number.line.training))
        axis.set_xticks(range(len(names)), names, rotation=30, ha="right")
        axis.set_ylabel(called(metric))
    legend_below(figure, axes)
    return figure


def hexagons(sheet: Sheet, _: Path) -> Any:
    """Each rival around MOON: an axis a set, FPR-95 outwards, so that the smaller figure is better."""
    lines = list(dict.fromkeys(n.line for n in sheet.numbers))
    ours = next(line for line in lines if line.training == "moon")
    rivals = [line for line in lines if line != ours]
    names = list(dict.fromkeys(n.set for n in sheet.numbers if n.set not in _MEANS))
    value = {(n.line, n.set): mean(n.ours.values()) if n.ours else np.nan for n in sheet.numbers}
    angles = [2 * pi * i / len(names) for i in range(len(names))]
    figure, axes = panels(1, len(rivals), subplot_kw={"projection": "polar"}, height=3.2)
    for axis, rival in zip(axes[0], rivals, strict=True):
        for line, colour, style in ((rival, PLAIN, "--"), (ours, OURS, "-")):
            radii = [value[line, name] for name in names]
            label = "temperature scaling" if line.detector == "tempscale" else called(line.training)
            axis.plot([*angles, angles[0]], [*radii, radii[0]], style, color=colour, label=label, lw=1.8)
            axis.fill(angles, radii, color=colour, alpha=0.12)
        axis.set_xticks(angles, names)
        axis.set_rlim(0)
        axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), frameon=False)
    return figure


def curves(sheet: Sheet, _: Path) -> Any:
    """Over sparsity, with bands of 95%: accuracy and ECE, a column a data set."""
    data = list(dict.fromkeys(n.line.data for n in sheet.numbers))
    metrics = list(dict.fromkeys(n.line.metric for n in sheet.numbers))
    figure, axes = panels(len(metrics), len(data), width=3.6)
    for row, metric in enumerate(metrics):
        for column, name in enumerate(data):
            axis = axes[row, column]
            for training, colour, style in (("plain", PLAIN, "o--"), ("moon", OURS, "s-")):
                place = metric, name, training
                here = [n for n in sheet.numbers if n.ours and (n.line.metric, n.line.data, n.line.training) == place]
                x = [100 * n.line.sparsity for n in here]
                axis.plot(x, [mean(n.ours.values()) for n in here], style, color=colour, label=called(training))
                if here and all(len(n.ours) > 1 for n in here):
                    low, high = zip(*(interval(list(n.ours.values())) for n in here), strict=True)
                    axis.fill_between(x, low, high, color=colour, alpha=0.2, lw=0)
            axis.set_title(called(name))
            axis.set_xlabel("sparsity %")
            axis.set_ylabel(called(metric) if column == 0 else "")
    legend_below(figure, axes)
    return figure


def trainings(sheet: Sheet, _: Path) -> Any:
    """AUROC of each training over sparsity, a column a detector, near above far: a point a seed, a line through the
    means, and the paper's mean as a cross."""
    here = [n for n in sheet.numbers if n.line.detector]
    if not here:  # a benchmark without unknown sets
        return panels(1, 1)[0]
    detectors, groups, words = (
        list(dict.fromkeys(values))
        for values in zip(*((n.line.detector, n.set, n.line.training) for n in here), strict=True)
    )
    sparsities = sorted({n.line.sparsity for n in here})
    figure, axes = panels(len(groups), len(detectors), height=2.5, sharex=True, sharey="row")
    for row, group in enumerate(groups):
        for column, detector in enumerate(detectors):
            axis = axes[row, column]
            for place, (word, colour, style) in enumerate(zip(words, cycle(COLOURS), cycle(LINES), strict=False)):
                own = [n for n in here if (n.set, n.line.detector, n.line.training) == (group, detector, word)]
                aside = 0.1 * (place - (len(words) - 1) / 2)  # so that points do not cover each other
                at = [(sparsities.index(n.line.sparsity) + aside, n) for n in own]
                dots_and_means(axis, [(x, y) for x, n in at for y in n.ours.values()], style, colour, called(word))
                for x, n in at:
                    if n.paper is not None:
                        axis.plot(x, n.paper[0], "x", color=colour, ms=6)
            axis.set_xticks(range(len(sparsities)), [f"{100 * s:g}%" for s in sparsities])
            if row == 0:
                axis.set_title(called(detector))
            if column == 0:
                axis.set_ylabel(f"AUROC %, {group} unknown")
    for axis in axes[-1]:
        axis.set_xlabel("sparsity")
    if any(n.paper is not None for n in here):
        axes[0, -1].plot([], [], "x", color="gray", label="the paper's mean")
    legend_below(figure, axes, columns=5)
    return figure


def components(sheet: Sheet, folder: Path) -> Any:
    """How the first principal component of the features is spread in each class, of the first seed's network."""
    name = sheet.names[0]
    path = folder / name / "known.npz"
    if not path.exists():
        figure, axes = panels(1, 1)
        axes[0, 0].text(0.5, 0.5, f"not run yet: {name}", ha="center", va="center", wrap=True)
        return figure
    with np.load(path) as file:
        values, labels = file["first_component"], file["labels"]
    classes = np.unique(labels)[:20]
    columns = 5 if len(classes) > 4 else len(classes)
    figure, axes = panels(-(-len(classes) // columns), columns, width=1.9, height=1.5, sharex=True)
    for axis, label in zip(axes.flat, classes, strict=False):
        axis.hist(values[labels == label], bins=40, color=PLAIN)
        axis.set_title(f"class {label}", fontsize=8)
        axis.set_yticks([])
    for axis in axes.flat[len(classes) :]:
        axis.set_axis_off()
    return figure


DRAWINGS: dict[str, Callable[[Sheet, Path], Any]] = {
    "bars": bars,
    "set_bars": set_bars,
    "hexagons": hexagons,
    "curves": curves,
    "trainings": trainings,
    "components": components,
}
