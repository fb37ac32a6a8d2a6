"""Format numbers for tables and pages: means with standard deviations, differences and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, stdev

MISSING = "-"  # shown where nothing was measured


def mean_and_deviation(values: Sequence[float], digits: int = 1, scale: float = 100.0) -> str:
    """Format the mean of some values, with the sample standard deviation if there are several.

    Args:
        values: One value per run.
        digits: Number of decimal places.
        scale: Factor applied to mean and deviation; the default shows fractions as percentages.

    Returns:
        `"97.1"` for one value, `"97.1 ± 0.3"` for several, `"-"` for none.

    Example:
        >>> from moon.results.format import mean_and_deviation
        >>> mean_and_deviation([0.4, 0.6])
        '50.0 ± 14.1'
        >>> mean_and_deviation([0.0312], digits=4, scale=1.0)
        '0.0312'
    """
    if not values:
        return MISSING
    text = f"{scale * mean(values):.{digits}f}"
    return text if len(values) < 2 else f"{text} ± {scale * stdev(values):.{digits}f}"


def signed(value: float, digits: int = 2) -> str:
    """Format a difference with its sign.

    Example:
        >>> from moon.results.format import signed
        >>> signed(0.125, 1)
        '+0.1'
    """
    return f"{value:+.{digits}f}"


def interval_text(low: float, high: float, digits: int = 2, *, sign: bool = False) -> str:
    """Format an interval.

    Args:
        low: Lower end.
        high: Upper end.
        digits: Number of decimal places.
        sign: Whether to show a plus sign, for intervals of differences.

    Returns:
        `"[1.00, 2.00]"`, or `"[+1.00, +2.00]"` with `sign`.

    Example:
        >>> from moon.results.format import interval_text
        >>> interval_text(-1, 2, 1, sign=True)
        '[-1.0, +2.0]'
    """
    show = "+" if sign else ""
    return f"[{low:{show}.{digits}f}, {high:{show}.{digits}f}]"
