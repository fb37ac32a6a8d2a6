"""TOML files that describe a grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from moon.data.toml_file import read_toml
from moon.errors import DataError
from moon.recipe import Recipe
from moon.recipe.expand import expand

_SETS = ("near", "far")


class GridFile(NamedTuple):
    """The runs of a file, and the unknown sets to score in place of the benchmarks'; () where it names none."""

    recipes: list[Recipe]
    near: tuple[str, ...]
    far: tuple[str, ...]


def read_file(root: Path, path: Path) -> GridFile:
    """Read a TOML file whose keys are axes; each `[[runs]]` block adds to or replaces the keys above it.

    The keys `near` and `far` are no axes: they list unknown sets that every run is scored on. A ValueError if the file
    cannot be read or describes no valid grid.
    """
    try:
        common = read_toml(path)
    except DataError as error:  # the file is an argument, not data
        raise ValueError(str(error)) from None
    near, far = (_names(path, key, common.pop(key, [])) for key in _SETS)
    blocks = common.pop("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"{path}: 'runs' must be blocks that begin with [[runs]]")
    found: dict[str, Recipe] = {}
    for number, block in enumerate(blocks, start=1):
        where = f"{path}, block {number} of [[runs]]" if block else str(path)
        if misplaced := [key for key in _SETS if key in block]:
            raise ValueError(f"{where}: '{misplaced[0]}' applies to the whole grid; write it above the first [[runs]]")
        try:
            replaced = {"preset": "objective", "objective": "preset"}  # a block with one drops the other
            kept = {name: value for name, value in common.items() if replaced.get(name) not in block}
            found |= {recipe.name: recipe for recipe in expand(root, kept | block)}
        except ValueError as error:
            raise type(error)(f"{where}: {error}") from None
    return GridFile(list(found.values()), near, far)


def _names(path: Path, key: str, value: Any) -> tuple[str, ...]:
    """A list of sets, or a single one."""
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) for name in names):
        raise ValueError(f"{path}: '{key}' must be a list of unknown sets, not {value!r}")
    return tuple(names)
