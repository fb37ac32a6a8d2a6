"""The kinds of methods, and their names without importing the methods: help texts must not wait for torch.

The tables of methods stay where they are. Their keys are read from the source code.
"""

from __future__ import annotations

import ast
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import NamedTuple

PACKED = "auto"  # the detector that is packed if none is named
_SOURCE = Path(__file__).parents[2]


class Kind(NamedTuple):
    """A kind of methods.

    Args:
        module: The module with the table of those of this package.
        table: The variable that is the table, a dict literal.
        group: The group of the entry points of other packages.
        base: The class, a name in the module, that a method derives from; "" for functions.
        is_object: Whether a method is an object of that class.
        more: Which names are accepted besides those that are listed.
        card: The card that all methods of this package share; "" if each has its own.
    """

    module: str
    table: str
    group: str
    base: str = ""
    is_object: bool = False
    more: str = ""
    card: str = ""


KINDS = {
    "objective": Kind(
        "moon.objectives", "OBJECTIVES", "moon.objectives", "Objective", more="OUTER+INNER, such as rotpred+moon"
    ),
    "topology": Kind("moon.sparse", "TOPOLOGIES", "moon.topologies", "Topology"),
    "allocation": Kind("moon.sparse", "ALLOCATIONS", "moon.allocations", card="allocation"),
    "pattern": Kind(
        "moon.sparse", "PATTERNS", "moon.patterns", "Pattern", True, card="pattern",
        more="any N:M, which keeps N of every M neighbouring inputs",
    ),
    "rates": Kind("moon.recipe.presets", "RATES", "moon.rates", "CosineRate", True, card="rates"),
    "detector": Kind("moon.detect", "DETECTORS", "moon.detectors", "Detector"),
    "net": Kind(
        "moon.nets", "NETS", "moon.nets", card="nets",
        more="timm:NAME, torchvision:NAME, openood:NAME, or an import path such as package.module:function",
    ),
    "preset": Kind("moon.recipe.presets", "PRESETS", "moon.presets", "Preset", True, card="presets"),
}  # fmt: skip


def names_of(kind: str) -> list[str]:
    """The names of all methods of a kind: those of this package, then those of other packages; nothing is imported."""
    module, table, group, *_ = KINDS[kind]
    return list(dict.fromkeys([*keys_of(module, table), *_installed().get(group, ())]))


@cache
def keys_of(module: str, variable: str) -> tuple[str, ...]:
    """The keys of the dict literal that is assigned to a variable of a module, or of a package."""
    path = _SOURCE.joinpath(*module.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
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
