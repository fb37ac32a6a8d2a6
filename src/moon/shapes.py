"""Checks of values that were read from JSON files: types, ranges of numbers, keys."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Number:
    """A finite number from `least` to `most`; with the kind `int`, a whole one."""

    least: float = -math.inf
    most: float = math.inf
    kind: type = float

    def __str__(self) -> str:
        what = "a whole number" if self.kind is int else "a number"
        if self.most < math.inf:
            return f"{what} from {self.least:g} to {self.most:g}"
        return what if self.least == -math.inf else f"{what}, at least {self.least:g}"

    def accepts(self, value: Any) -> bool:
        """Whether a value is such a number; True and False are not."""
        is_number = isinstance(value, int if self.kind is int else (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and self.least <= value <= self.most


SHARE = Number(0, 1)
COUNT = Number(0, kind=int)


@dataclass(frozen=True)
class Optional:
    """The value of a key that may be missing."""

    shape: Any


@dataclass(frozen=True)
class OrNone:
    """A value that may be None."""

    shape: Any


def check_shape(value: Any, shape: Any, where: str = "its content") -> None:
    """Raise a ValueError if a value that was read from a JSON file is not of this shape; `where` names it.

    A shape is a type, a `Number`, a list with the shape of its items, or a dict with the shape of each key. The key
    `...` stands for all others; without it they are not checked.
    """
    if isinstance(shape, Optional):
        check_shape(value, shape.shape, where)
    elif isinstance(shape, OrNone):
        if value is not None:
            check_shape(value, shape.shape, where)
    elif isinstance(shape, Number):
        if not shape.accepts(value):
            raise ValueError(f"{where} is {_short(value)}, expected {shape}")
    elif isinstance(shape, list):
        _check_type(value, list, where)
        for index, item in enumerate(value):
            check_shape(item, shape[0], f"{where}[{index}]")
    elif isinstance(shape, dict):
        _check_object(value, shape, where)
    else:
        _check_type(value, shape, where)


def _check_object(value: Any, shape: dict[Any, Any], where: str) -> None:
    """Check the keys of an object and their values."""
    _check_type(value, dict, where)
    for key in shape.keys() - value.keys() - {...}:
        if not isinstance(shape[key], Optional):
            raise ValueError(f"{where} has no '{key}'")
    prefix = "" if where == "its content" else f"{where}."
    for key, item in value.items():
        if (expected := shape.get(key, shape.get(...))) is not None:
            check_shape(item, expected, f"{prefix}{key}")


def _check_type(value: Any, kind: type, where: str) -> None:
    if not isinstance(value, kind):
        names = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
        raise ValueError(f"{where} is {_short(value)}, expected {names[kind]}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
