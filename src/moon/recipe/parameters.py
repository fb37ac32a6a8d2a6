"""Declare a parameter of a run once, for the command line, grids, TOML files and `Recipe`."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field
from numbers import Integral, Real
from typing import Any

Scalar = int | float | str | bool


@dataclass(frozen=True)
class Parameter:
    """A parameter of a run that users can set.

    Args:
        name: The command-line flag (`--name`), the grid axis and the TOML key.
        setting: The keyword argument of `make_recipe`; for most parameters a field of `Recipe`.
        type: The type of its value.
        help: What it means, in one line.
        default: A description of the default, for the help text.
        table: The kind of registry that lists its values, if there is one.
        metavar: The placeholder for the value in the help text.
        minimum: The smallest value of an integer.
    """

    name: str
    setting: str
    type: type
    help: str
    default: str = ""
    table: str = ""
    metavar: str | None = None
    minimum: int | None = None


def setting(name: str, help: str, *, default: Any = MISSING, otherwise: str | None = None, **more: Any) -> Any:
    """Declare a field of `Recipe` that users can set; `more` are `table`, `metavar` and `minimum` of `Parameter`.

    Without a `default`, `make_recipe` fills the field in; `otherwise` describes a default that is not simply a value.
    """
    text = str(default) if otherwise is None else otherwise
    parameter = {"name": name, "help": help, "default": text, **more}
    return field(default=default, metadata={"help": help, "parameter": parameter})


def detail(help: str, *, default: Any = MISSING) -> Any:
    """Declare a field of `Recipe` that other settings determine."""
    return field(default=default, metadata={"help": help})


def converted(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to the type of a field of `Recipe`, so that 0, 0.0 and NumPy's 0 are the same recipe.

    Raises:
        ValueError: If the field is a number, an integer or a truth value, and the value is none.

    Example:
        >>> from moon.recipe.parameters import converted
        >>> converted("sparsity", float, 0)
        0.0
    """
    if kind is bool:
        if value not in (False, True):  # also 0, 1 and NumPy's
            raise ValueError(f"{name} must be True or False, not {value!r}")
        return bool(value)
    if kind not in (int, float):
        return value
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        raise ValueError(f"{name} must be {'an integer' if kind is int else 'a number'}, not {value!r}")
    return int(value) if isinstance(value, Integral) and kind is int else float(value)
