"""Objectives by name, for the training loops of others."""

from __future__ import annotations

from typing import Any

from torch import nn

from moon.evidence import OpenHead, classifier_of
from moon.objectives import Objective
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
    kind = pick("objective", objective)
    head = classifier_of(model)
    num_known = head.out_features - isinstance(head, OpenHead)
    facts = {"epochs": epochs, "num_known": num_known, "num_features": head.in_features}
    takes = kind.takes()
    single = {name: p for name, p in takes.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    for name in options:
        if name not in single and not takes_any:
            choices = ", ".join(key for key, parameter in single.items() if parameter.default is not parameter.empty)
            found = f"objective '{objective}' has no option '{name}'{did_you_mean(name, single)}"
            raise ValueError(f"{found}; {f'choose from: {choices}' if choices else 'it has none'}")
    given = {name: facts[name] for name in takes if name in facts} | options
    if missing := [name for name, p in single.items() if p.default is p.empty and name not in given]:
        raise ValueError(f"objective '{objective}' needs {', '.join(missing)}; build it yourself and give the object")
    return kind.for_run(**given)
