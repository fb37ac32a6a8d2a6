"""One objective around another, such as RotPred around MOON."""

from __future__ import annotations

from functools import cache
from inspect import Parameter, Signature, signature
from typing import Any

from moon.objectives.base import Objective


@cache
def compose(outer: type[Objective], inner: type[Objective]) -> type[Objective]:
    """The class of an objective whose inner objective is another one, with the options of both; `for_run` builds it.

    It needs the outputs and heads that either needs. Learning rates and vote are those of `outer` if it has its own,
    else those of `inner`. Raises a ValueError if `outer` takes no inner objective, if `inner` computes with features,
    or if both have an option of the same name.
    """
    names = outer.__name__, inner.__name__
    if "inner" not in signature(outer).parameters:
        raise ValueError(f"{names[0]} takes no inner objective, so it cannot be computed around {names[1]}")
    if inner.reads_features:
        raise ValueError(
            f"{names[1]} computes with features, which {names[0]} may change, so it cannot be its inner objective"
        )
    if shared := sorted((outer.takes().keys() - {"inner"}) & inner.takes().keys()):
        raise ValueError(f"{names[0]} and {names[1]} both have the parameter '{shared[0]}' and cannot be composed")

    def make_inner(**values: Any) -> Objective:
        return inner.for_run(**values)

    taken = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in inner.takes().values()]
    make_inner.__signature__ = Signature(taken)  # pyright: ignore[reportFunctionMemberAccess]
    attributes: dict[str, Any] = {
        "extra_logits": max(outer.extra_logits, inner.extra_logits),
        "rotates": outer.rotates or inner.rotates,
        "normalises_logits": outer.normalises_logits or inner.normalises_logits,
        "rates": inner.rates if outer.rates == Objective.rates else outer.rates,
        "vote_share": outer.vote_share or inner.vote_share,
        "parts": {**outer.parts, "inner": make_inner},
        "__module__": outer.__module__,
        "__doc__": f"`{names[0]}` around `{names[1]}`.",
    }
    if "capturable" in vars(outer):  # captured steps ask the class itself, not its base
        attributes["capturable"] = outer.capturable
    return type("Around".join(names), (outer,), attributes)
