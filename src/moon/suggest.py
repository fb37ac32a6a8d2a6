"""Suggestions for misspelled names in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return ", did you mean 'X'?" for the closest candidate, or "" if none is close.

    >>> did_you_mean("rgl", ["set", "rigl"])
    ", did you mean 'rigl'?"
    """
    close = get_close_matches(name, list(candidates), 1)
    return f", did you mean '{close[0]}'?" if close else ""
