"""The names of methods, without importing the methods: for help texts, which must not wait for torch.

The tables of methods stay where they are. Their keys are read from the source code.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

_SOURCE = Path(__file__).parents[1]


class _Table(NamedTuple):
    file: str
    variable: str
    group: str = ""  # of the entry points of other packages


_TABLES = {
    "objective": _Table("objectives/__init__.py", "OBJECTIVES", "moon.objectives"),
    "topology": _Table("sparse/__init__.py", "TOPOLOGIES", "moon.topologies"),
    "allocation": _Table("sparse/__init__.py", "ALLOCATIONS"),
    "rates": _Table("recipe/presets.py", "RATES"),
    "detector": _Table("detect/__init__.py", "DETECTORS", "moon.detectors"),
    "net": _Table("nets/__init__.py", "NETS", "moon.nets"),
    "preset": _Table("recipe/presets.py", "PRESETS"),
    "download": _Table("data/download.py", "SOURCES"),
}


def names_of(kind: str) -> list[str]:
    """The names of all methods of a kind: those of this package, then those of other packages.

    Args:
        kind: One of `moon.recipe.kinds()`, or "download" for the sets that `moon data download` knows.

    Returns:
        The names in the order of the table; nothing is imported.

    Example:
        >>> from moon.recipe.names import names_of
        >>> names_of("allocation")
        ['erk', 'uniform']
    """
    table = _TABLES[kind]
    return list(dict.fromkeys([*_keys(table.file, table.variable), *_installed().get(table.group, ())]))


def group_of(kind: str) -> str:
    """The entry-point group of a kind; "" if other packages cannot extend it."""
    return _TABLES[kind].group


@cache
def _keys(file: str, variable: str) -> tuple[str, ...]:
    """The keys of the dict literal that is assigned to a variable of a file."""
    for node in ast.parse((_SOURCE / file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Dict):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and target.id == variable:
                return tuple(ast.literal_eval(key) for key in node.value.keys if key is not None)
    raise AssertionError(f"{file}: has no dict literal {variable}")


@cache
def _installed() -> dict[str, list[str]]:
    """The names of the entry points of other packages, by group; searching for them takes time."""
    points = entry_points()
    return {group: [point.name for point in points.select(group=group)] for group in points.groups}
