"""A picture of images with the answers of a network: a class or "unknown", and the p-value of "known"."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moon.results.plotting import COLOURS, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_RIGHT, _WRONG = COLOURS[0], COLOURS[1]
_IMAGE, _GAP, _EDGE = 0.96, 0.10, 0.10  # inches
_TITLE, _HEADING, _TEXT, _LEGEND = 0.40, 0.30, 0.56, 0.28  # heights in inches; the text of an answer is below its image


@dataclass(frozen=True)
class AnsweredImages:
    """Images (N, H, W, C) and for each: the answer of a network, the p-value of "known", and if the answer is right."""

    heading: str
    images: NDArray[np.uint8]
    answers: Sequence[str]
    p_values: Sequence[float]
    right: Sequence[bool]


@styled
def answered_images(rows: Sequence[AnsweredImages], title: str = "") -> Figure:
    """Draw images in rows with answers and p-values, in frames whose colours say whether the answers are right."""
    from matplotlib.figure import Figure

    columns = max(len(row.images) for row in rows)
    width = 2 * _EDGE + columns * (_IMAGE + _GAP) - _GAP
    top = _TITLE if title else _EDGE
    height = top + len(rows) * (_HEADING + _IMAGE + _TEXT) + _LEGEND
    figure = Figure((width, height))
    if title:
        figure.text(0.5, 1 - 0.08 / height, title, ha="center", va="top", fontsize=12, fontweight="bold")
    for row in rows:
        figure.text(_EDGE / width, 1 - (top + 0.06) / height, row.heading, va="top", fontsize=10)
        top += _HEADING + _IMAGE
        left = _EDGE
        for image, answer, p_value, right in zip(row.images, row.answers, row.p_values, row.right, strict=True):
            box = left / width, 1 - top / height, _IMAGE / width, _IMAGE / height
            _draw(figure.add_axes(box), image, answer, p_value, right)
            left += _IMAGE + _GAP
        top += _TEXT
    _explain(figure)
    return figure


def _draw(axis: Axes, image: NDArray[np.uint8], answer: str, p_value: float, right: bool) -> None:
    """One image with its answer."""
    colour = _RIGHT if right else _WRONG
    axis.imshow(image.squeeze(), cmap="gray", vmin=0, vmax=255, interpolation="nearest", aspect="auto")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(visible=True, color=colour, linewidth=2.5)
    text: dict[str, Any] = {"xycoords": "axes fraction", "ha": "center", "va": "top", "textcoords": "offset points"}
    shown = answer if right else f"{answer} ✗"
    size = 10 if len(shown) <= 10 else 7
    axis.annotate(shown, (0.5, 0), (0, -5), fontsize=size, fontweight="bold", color=colour, **text)
    axis.annotate(f"p = {p_value:.3f}", (0.5, 0), (0, -19), fontsize=9, color="#444444", **text)


def _explain(figure: Figure) -> None:
    """A legend: what the frames and p mean."""
    from matplotlib.patches import Patch

    frames = {"right": _RIGHT, "wrong ✗": _WRONG, "p: the p-value of “this image is known”": "none"}
    entries = [Patch(facecolor="none", edgecolor=c, linewidth=2.5, label=label) for label, c in frames.items()]
    figure.legend(handles=entries, loc="lower center", ncols=len(entries), frameon=False, fontsize=9, borderaxespad=0.2)
