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
    """Declare a field of `Recipe` that users can set.

    Args:
        name: The command-line flag, grid axis and TOML key.
        help: What it means, in one line.
        default: The field's default; left out for fields that `make_recipe` fills in.
        otherwise: A description of the default, if it is not simply the value of `default`.
        **more: `table`, `metavar` and `minimum` of `Parameter`.

    Returns:
        A dataclass field with the declaration in its metadata.
    """
    text = str(default) if otherwise is None else otherwise
    parameter = {"name": name, "help": help, "default": text, **more}
    return field(default=default, metadata={"help": help, "parameter": parameter})


def detail(help: str, *, default: Any = MISSING) -> Any:
    """Declare a field of `Recipe` that other settings determine.

    Args:
        help: What it means, in one line.
        default: The field's default, if it has one.

    Returns:
        A dataclass field with the description in its metadata.
    """
    return field(default=default, metadata={"help": help})


def converted(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to the type of a field of `Recipe`, so that 0, 0.0 and NumPy's 0 are the same recipe.

    Args:
        name: The name of the field.
        kind: Its type. Only integers and floats are converted.
        value: The value.

    Returns:
        The value as an int or float where the field is one, otherwise as it is.

    Raises:
        ValueError: If the field is a number and the value is not, or is not an integer where the field is one.

    Example:
        >>> from moon.recipe.parameters import converted
        >>> converted("sparsity", float, 0)
        0.0
    """
    if kind not in (int, float):
        return value
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        raise ValueError(f"{name} must be {'an integer' if kind is int else 'a number'}, not {value!r}")
    return int(value) if isinstance(value, Integral) and kind is int else float(value)
