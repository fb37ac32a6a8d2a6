"""Words of messages: suggestions for misspelled names, and numbers with their nouns."""

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


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(0, "vote"), counted(1, "vote"), counted(2000, "vote")
    ('no votes', '1 vote', '2,000 votes')
    """
    return f"{f'{number:,}' if number else 'no'} {what}{'' if number == 1 else 's'}"
