"""The figure of the numerical demonstration of Section 4 (`moon.paper.theory`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moon.paper.theory import COUNTS, HARD, RADIUS, samples, unknowns
from moon.results.plotting import COLOURS, panels, save, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEW, _SOME, _MANY = COUNTS
_COLOUR_OF_W = {None: COLOURS[0], 2.0: COLOURS[2], 4.0: COLOURS[4], 10.0: COLOURS[3]}
_DEVIATION = "± standard deviation over seeds"
_REGIONS = {
    "known": "known",
    "hard": "known, on the\nwrong side",
    "between": "unknown,\nbetween",
    "far": "unknown,\nfar",
}


@styled
def draw(result: dict[str, Any], path: Path) -> None:
    """Draw the classes, the gap between them, p_3 of the pointwise minimiser, and confidence by region."""
    figure, axes = panels(2, 2, 4.8, 3.6)
    features, gaps, pointwise, confidence = axes.flat
    _draw_features(features)
    # The networks with the fewest and the most samples.
    shown = [run for run in result["trained"] if run["count"] != _SOME and run["w"] in _COLOUR_OF_W]
    _draw_gaps(gaps, shown, result["positions"])
    _draw_minimiser(pointwise, result)
    _draw_confidence(confidence, shown)
    save(figure, path)


def _draw_features(axis: Axes) -> None:
    x, y = samples(_SOME, 0)
    for label, (marker, colour) in enumerate(zip("o^", (COLOURS[5], COLOURS[1]), strict=True)):
        axis.scatter(*x[y == label].T, s=10, marker=marker, color=colour, alpha=0.7, label=f"class {label + 1}")
    axis.scatter(*unknowns()["between"][:60].T, s=12, marker="x", lw=0.8, color="black", label="unknown, between")
    angle = np.linspace(0, 2 * np.pi)
    edge = HARD + RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    axis.plot(*edge, color=COLOURS[0], lw=2, label=f"ball around $x_1$, radius {RADIUS:g}")
    axis.set(title="Features", aspect="equal")
    axis.set_ylim(top=6)  # room for the legend
    axis.set(xlabel="feature 1, standard deviations", ylabel="feature 2, standard deviations")
    axis.legend(loc="upper center", ncols=2, frameon=False)


def _style(run: dict[str, Any]) -> dict[str, Any]:
    """Colour and label of a loss and a number of samples."""
    name = "cross-entropy" if run["w"] is None else f"MOON, w = {run['w']:g}"
    return {"color": _COLOUR_OF_W[run["w"]], "label": f"{name}, {run['count']} samples"}


def _deviation(values: np.ndarray, axis: int) -> np.ndarray:
    """Sample standard deviation over seeds; 0 for one seed."""
    return values.std(axis, ddof=int(values.shape[axis] > 1))


def _draw_gaps(axis: Axes, shown: list[dict[str, Any]], positions: list[float]) -> None:
    for run in shown:
        gaps = np.array(run["gap"]["line"])  # (seeds, positions)
        middle, deviation = gaps.mean(0), _deviation(gaps, 0)
        axis.plot(positions, middle, "-" if run["count"] == _MANY else "--", **_style(run))
        axis.fill_between(
            positions, middle - deviation, middle + deviation, color=_style(run)["color"], alpha=0.1, lw=0
        )
    axis.fill_between([], [], [], color="gray", alpha=0.3, lw=0, label=_DEVIATION)
    axis.axhline(0, color="black", lw=0.8)
    axis.set(title="Gap in balls along the line between the means")
    axis.set_ylim(top=1)  # room for the legend
    axis.set(xlabel="centre of the ball, feature 1", ylabel="confidence - accuracy")
    axis.legend(loc="upper center", ncols=2, frameon=False, fontsize=8, columnspacing=1, handlelength=1.5)


def _draw_minimiser(axis: Axes, result: dict[str, Any]) -> None:
    shares, curves = result["shares"], result["pointwise"]
    zero = [f"{curve['w']:g}" for curve in curves if not any(curve["p_unknown"])]
    axis.plot(shares, [0.0] * len(shares), color="black", label=f"w = {', '.join(zero)}")
    for curve in curves:
        if any(curve["p_unknown"]):
            axis.plot(shares, curve["p_unknown"], color=_COLOUR_OF_W[curve["w"]], label=f"w = {curve['w']:g}")
    axis.set(title="$p_3$ of the pointwise minimiser")
    axis.set(xlabel="share q of the samples that belong to class 1", ylabel="$p_3$")
    axis.legend(frameon=False)


def _draw_confidence(axis: Axes, shown: list[dict[str, Any]]) -> None:
    for index, run in enumerate(shown, -len(shown) // 2):
        values = np.array([run["confidence"][region] for region in _REGIONS])  # (regions, seeds)
        x = np.arange(len(values)) + 0.12 * (index + 0.5)
        fill = "full" if run["count"] == _MANY else "none"
        axis.errorbar(x, values.mean(1), _deviation(values, 1), fmt="o", fillstyle=fill, capsize=2, **_style(run))
    bar = axis.errorbar([], [], [], fmt="none", ecolor="gray", capsize=2)
    axis.legend([bar], [_DEVIATION], loc="lower left", frameon=False, fontsize=8)
    axis.set(title="Confidence by region", ylabel="mean confidence")
    axis.set_xlabel(f"colours as above; hollow: {_FEW} samples, filled: {_MANY}")
    axis.set_xticks(range(len(_REGIONS)), _REGIONS.values())
