"""Format numbers for tables and pages: means with standard deviations, differences and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

MISSING = "-"  # shown where nothing was measured


def mean_and_deviation(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """Format the mean of some values, with the sample standard deviation if there are several; "-" for none.

    The default `scale` shows fractions as percentages.
    """
    if not values:
        return MISSING
    text = f"{scale * mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * stdev(values):.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """Format a difference with its sign."""
    return f"{value:+.{digits}f}"


def p_text(p: float) -> str:
    """Format a p-value: 'p = 0.003', or 'p < 0.001'."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def interval_text(low: float, high: float, digits: int = 2, *, sign: bool = False) -> str:
    """Format an interval; with `sign`, for intervals of differences, with a plus sign."""
    show = "+" if sign else ""
    return f"[{low:{show}.{digits}f}, {high:{show}.{digits}f}]"
