"""Objectives by name, for the training loops of others."""

from __future__ import annotations

from typing import Any

from torch import nn

from moon.objectives import Objective
from moon.recipe import build
from moon.recipe.registry import pick
from moon.suggest import did_you_mean


def make_objective(objective: str | Objective, model: nn.Module, *, epochs: int, **options: Any) -> Objective:
    """Build an objective from its name, with options; an objective is returned as it is.

    The classifier of the model determines the numbers of classes and features. Raises a ValueError if there is no such
    objective or option, if the objective needs more than a name, such as outliers, or if options are given for an
    objective that exists already.
    """
    if not isinstance(objective, str):
        if options:
            raise ValueError(f"{type(objective).__name__} is built already; give its options to its constructor")
        return objective
    takes = pick("objective", objective).takes()
    single = {name: p for name, p in takes.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    unknown = [name for name in options if name not in single]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        choices = ", ".join(name for name, p in single.items() if p.default is not p.empty)
        found = f"objective '{objective}' has no option '{unknown[0]}'{did_you_mean(unknown[0], single)}"
        raise ValueError(f"{found}; {f'choose from: {choices}' if choices else 'it has none'}")
    given = {"epochs", "num_known", "num_features", *options}
    if missing := [name for name, p in single.items() if p.default is p.empty and name not in given]:
        raise ValueError(f"objective '{objective}' needs {', '.join(missing)}; build it yourself and give the object")
    return build.make_objective(objective, model, {"epochs": epochs}, options)
