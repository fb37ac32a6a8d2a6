"""Names and words: one name or several, suggestions for misspelled ones, numbers with nouns, first lines of errors."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """Return " (did you mean 'X'?)", to follow a name in a sentence, for the closest candidate, or "" if none is close.

    >>> did_you_mean("rgl", ["set", "rigl"])
    " (did you mean 'rigl'?)"

    Names of parts joined by "+" are closest to those with the same parts in another order.

    >>> did_you_mean("cutout+trivial", ["trivial", "trivial+cutout"])
    " (did you mean 'trivial+cutout'?)"

    Unless another one is very close, a name to which a hyphen adds something is closest to the name before it.

    >>> did_you_mean("--lr-start", ["--delta-t", "--lr"])
    " (did you mean '--lr'?)"
    """
    candidates, parts = list(candidates), sorted(name.split("+"))
    reordered = [candidate for candidate in candidates if sorted(candidate.split("+")) == parts]
    shorter = [candidate for candidate in candidates if candidate.strip("-") and name.startswith(f"{candidate}-")]
    close = reordered or get_close_matches(name, candidates, 1, 0.85)
    close = close or sorted(shorter, key=len, reverse=True) or get_close_matches(name, candidates, 1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def as_names(names: str | Iterable[str]) -> tuple[str, ...]:
    """Return the names of an argument that is one name or several; a single one is not read letter by letter.

    >>> as_names("msp"), as_names(["msp", "knn"])
    (('msp',), ('msp', 'knn'))
    """
    return (names,) if isinstance(names, str) else tuple(names)


def counted(number: int, what: str) -> str:
    """Return a number with its noun.

    >>> counted(0, "vote"), counted(1, "vote"), counted(2000, "vote")
    ('no votes', '1 vote', '2,000 votes')
    """
    return f"{f'{number:,}' if number else 'no'} {what}{'' if number == 1 else 's'}"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or the name of its class if it has none.

    >>> first_line(ValueError("no such file\\nsee the log")), first_line(KeyboardInterrupt())
    ('no such file', 'KeyboardInterrupt')
    """
    return next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
