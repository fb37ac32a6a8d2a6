"""Objectives by name, for the training loops of others."""

from __future__ import annotations

from typing import Any

from torch import nn

from moon.evidence import OpenHead, classifier_of
from moon.objectives import Objective
from moon.recipe.registry import pick


def make_objective(objective: str | Objective, model: nn.Module, *, epochs: int, **options: Any) -> Objective:
    """Build an objective from its name.

    Args:
        objective: A name, as for `moon train`, or an objective, which is returned as it is.
        model: The network; its classifier determines the numbers of classes and features.
        epochs: The number of epochs of the run.
        **options: Options of the objective, such as `final=2.0` for MOON.

    Returns:
        The objective.

    Raises:
        ValueError: If there is no such objective, or if options are given for an objective that exists already.

    Example:
        >>> from moon import lenet, open_head
        >>> from moon.integrations.objective import make_objective
        >>> make_objective("moon", open_head(lenet(10)), epochs=100).log(99)
        {'w': 1.0}
    """
    if not isinstance(objective, str):
        if options:
            raise ValueError(f"{type(objective).__name__} is built already; give its options to its constructor")
        return objective
    kind = pick("objective", objective)
    head = classifier_of(model)
    num_known = head.out_features - isinstance(head, OpenHead)
    facts = {"epochs": epochs, "num_known": num_known, "num_features": head.in_features}
    return kind.for_run(**{name: facts[name] for name in kind.takes() if name in facts}, **options)
