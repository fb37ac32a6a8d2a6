"""The style and the building blocks that all figures share.

Figures are `matplotlib.figure.Figure` objects, made without pyplot. The style is active only while one of these
functions runs, so the settings and the backend of the host program do not change.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Sequence
from functools import wraps
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np

from moon.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The colours of Okabe and Ito, which colour-blind readers can distinguish; known inputs have the first.
COLOURS = ("#0072B2", "#D55E00", "#E69F00", "#CC79A7", "#009E73", "#56B4E9", "#000000")
LINES = ("-", "--", "-.", ":")
ONE_RUN = "one run; lines: means"
DIGEST = "SHA-256 of the plotted data:"  # what precedes it in the description of an SVG file
_LEGEND_ROW = 0.2  # height of a row of a legend, in inches
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text
    "svg.hashsalt": "moon",  # make files reproducible
    "pdf.fonttype": 42,  # TrueType: many journals refuse matplotlib's default, Type 3
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

P = ParamSpec("P")
R = TypeVar("R")


def styled(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that draws: the style of our figures is active while it runs, and undone afterwards."""

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        import matplotlib

        with matplotlib.rc_context(_STYLE):
            return function(*args, **kwargs)

    return wrapper


@styled
def panels(rows: int, columns: int, width: float = 3.2, height: float = 2.8, **settings: Any) -> tuple[Figure, Any]:
    """Create a figure with a grid of panels, whose size is in inches; returns it and its axes, (rows, columns)."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    layout = ConstrainedLayoutEngine(hspace=0.08)  # between the label of an axis and the title below it
    figure = Figure((width * columns + 0.4, height * rows + 0.5), layout=layout)
    return figure, figure.subplots(rows, columns, squeeze=False, **settings)


def method_panels(count: int, **settings: Any) -> tuple[Figure, Any]:
    """Create a figure with `count` panels, at most three per row; surplus panels stay empty."""
    columns = min(max(count, 1), 3)
    rows = max(1, -(-count // columns))
    figure, axes = panels(rows, columns, **settings)
    for axis in axes.flat[count:]:
        axis.set_axis_off()
    return figure, axes


@styled
def save(figure: Figure, *paths: Path) -> None:
    """Write a figure to each path, in the format of its suffix; folders are created.

    An SVG file contains the digest of the plotted data in its description. It tells whether two files show the same,
    which their bytes do not: they depend on the version of matplotlib. No file contains the date.
    """
    metadata = {
        ".svg": {"Date": None, "Description": f"{DIGEST} {data_digest(figure)}"},
        ".pdf": {"CreationDate": None},
    }
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        about = metadata.get(path.suffix)
        write_atomic(path, lambda partial, about=about: figure.savefig(partial, dpi=150, metadata=about))


def data_digest(figure: Figure) -> str:
    """Return the SHA-256 of what a figure shows: titles, labels and plotted data, to five significant digits.

    It does not depend on fonts, sizes, ticks and limits of axes.
    """
    shown: list[str] = [figure.get_suptitle()]
    for axis in figure.axes:
        shown += [axis.get_title(), axis.get_xlabel(), axis.get_ylabel()]
        shown += [text.get_text() for text in axis.texts]
        for line in axis.lines:
            shown += [str(line.get_label()), _digits(line.get_xydata())]
        for patch in axis.patches:
            vertices = patch.get_path().vertices
            shown += [str(patch.get_label()), _digits(patch.get_patch_transform().transform(vertices))]
        for collection in axis.collections:
            shown += [str(collection.get_label()), *(_digits(path.vertices) for path in collection.get_paths())]
    return hashlib.sha256("\n".join(shown).encode()).hexdigest()


def _digits(points: Any) -> str:
    return " ".join(f"{value:.5g}" for value in np.asarray(points, dtype=float).ravel() + 0.0)


@styled
def svg(figure: Figure, label: str) -> str:
    """Return a figure as an `<svg>` element for an HTML page, with the label, escaped here, that screen readers say."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    element = text.getvalue()
    element = element[element.index("<svg") :]
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    return element.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1)


@styled
def legend_below(figure: Figure, axes: Any, columns: int = 4) -> None:
    """Add one legend for all panels below them, with fewer columns if it would be wider than the figure."""
    entries: dict[str, Any] = {}
    for axis in axes.flat:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    height = figure.get_figheight()
    for used in range(min(len(entries), columns), 0, -1):
        rows = -(-len(entries) // used)
        figure.set_figheight(height + _LEGEND_ROW * (rows - 1))  # panels keep their height
        legend = figure.legend(
            list(entries.values()), list(entries), loc="outside lower center", ncols=used, frameon=False
        )
        figure.draw_without_rendering()  # the width of the legend depends on its texts
        if used == 1 or legend.get_window_extent().width <= figure.bbox.width:
            break
        legend.remove()


def dots_and_means(axis: Axes, points: Sequence[tuple[float, float]], style: str, colour: str, label: str) -> None:
    """Draw one dot per point, and a line through the mean of the points at each x."""
    xs = sorted({x for x, _ in points})
    means = [np.mean([y for other, y in points if other == x]) for x in xs]
    axis.plot([x for x, _ in points], [y for _, y in points], ".", color=colour, alpha=0.6)
    axis.plot(xs, means, style, marker="o", ms=3, color=colour, label=label, lw=1.6)
