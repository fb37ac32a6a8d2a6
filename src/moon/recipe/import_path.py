"""Functions that are named by their import path, such as `mypackage.nets:make`."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any

from moon.suggest import did_you_mean


def imported(kind: str, path: str, **arguments: Any) -> Callable[..., Any]:
    """Import the function "package.module:function"; a ValueError unless it exists and accepts such arguments.

    `kind` says what it is, in messages.
    """
    where, _, name = path.partition(":")
    label = f"{kind} '{path}'"
    if not where or not name.isidentifier():
        raise ValueError(f"{label}: must be 'package.module:function'")
    try:
        module = import_module(where)
    except Exception as error:  # importing someone's module may raise anything
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{where}.".startswith(f"{missing}."):
            advice = "is its folder the current one, or on PYTHONPATH?"
            raise ValueError(f"{label}: there is no module '{missing}'; {advice}") from None
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ValueError(f"{label}: importing '{where}' failed ({reason})") from error
    if not hasattr(module, name):
        source = getattr(module, "__file__", None) or where
        raise ValueError(f"{label}: {source} has no '{name}'{did_you_mean(name, dir(module))}")
    entry = getattr(module, name)
    if not callable(entry):
        raise ValueError(f"{label}: must be a function, not {entry!r}")
    try:
        signature(entry).bind(**arguments)
    except TypeError as error:
        call = ", ".join(f"{key}={value}" for key, value in arguments.items())
        raise ValueError(f"{label}: {name}({call}) fails ({error}); it must accept these arguments") from None
    except ValueError:  # some functions of extension modules have no signature
        pass
    return entry
