"""Which detectors `auto` chose for some runs, as remarks below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from moon.score.auto import AUTO, choice_line
from moon.suggest import counted


def describe_choices(runs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Describe the choices of `auto`.

    Args:
        runs: The scores.json of each run.

    Returns:
        One line for each choice, with the number of runs if it is not that of all; none if nothing was chosen.

    Example:
        >>> from moon.results.choices import describe_choices
        >>> chosen = {"detector": "fisher", "why": "by the rule for networks with normalised logits"}
        >>> describe_choices([{"auto": chosen}, {}])
        ['auto: fisher, by the rule for networks with normalised logits (1 run)']
    """
    runs = list(runs)
    counts = Counter(choice_line(run[AUTO]) for run in runs if AUTO in run)
    return [line if number == len(runs) else f"{line} ({counted(number, 'run')})" for line, number in counts.items()]
