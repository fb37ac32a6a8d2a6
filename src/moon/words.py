"""Help with mistyped words."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, words: Iterable[str]) -> str:
    """ ", did you mean 'X'?" for the nearest of the words, or nothing."""
    close = get_close_matches(word, list(words), 1)
    return f", did you mean '{close[0]}'?" if close else ""
