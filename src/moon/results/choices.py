"""Which detectors `auto` chose for some runs, as remarks below a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from moon.score.auto import AUTO
from moon.suggest import counted


def describe_choices(methods: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Describe the choices of `auto`, given the scores.json of the runs of each method.

    There is one line for each method and choice, with the number of runs if it is not that of all runs of the method.
    If all runs of several methods have the same choice, it is one line without the methods.
    """
    every = Counter(_line(run) for runs in methods.values() for run in runs)
    if len(every) == 1:
        return [line for line in every if line]
    lines = []
    for method, runs in methods.items():
        for line, number in Counter(_line(run) for run in runs).items():
            some = "" if number == len(runs) else f" ({counted(number, 'run')})"
            lines += [f"{method}: {line}{some}"] if line else []
    return lines


def _line(run: Mapping[str, Any]) -> str:
    """What was chosen for a run and why; "" if nothing was chosen."""
    return f"{run[AUTO]['detector']}, {run[AUTO]['why']}" if AUTO in run else ""
