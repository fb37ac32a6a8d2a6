"""Grids: expand axes into recipes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from moon.data import find_benchmark
from moon.recipe.defaults import make_recipe
from moon.recipe.presets import Preset
from moon.recipe.recipe import PARAMETERS, Recipe
from moon.recipe.registry import options_of, pick
from moon.sparse import SparseTopology
from moon.suggest import did_you_mean

OPTIONS = "set"  # the axis that is a table of the options of objectives and topologies


def expand(root: Path, axes: Mapping[str, Any]) -> list[Recipe]:
    """Return a recipe for every combination of the values of the axes, each once.

    An axis is a parameter with a value or a list of values; `set` is a table of options of the objectives and
    topologies, each of which takes those that it has. A dense network is not repeated for each sparsity.
    """
    for name in axes:
        if name not in PARAMETERS and name != OPTIONS:
            names = [*PARAMETERS, OPTIONS]
            raise ValueError(f"a grid has no axis '{name}'{did_you_mean(name, names)}; choose from: {', '.join(names)}")
    if "benchmark" not in axes:
        raise ValueError("a grid needs at least one benchmark")
    options = axes.get(OPTIONS, {})
    if not isinstance(options, Mapping):
        raise ValueError(f"'{OPTIONS}' must be a table of options, such as set.final = 2, not {options!r}")
    values = {name: [_typed(name, one) for one in _as_list(axes[name])] for name in axes if name != OPTIONS}
    if empty := [name for name, several in values.items() if not several]:
        raise ValueError(f"'{empty[0]}' has no value; give at least one, or leave it out")
    presets: dict[str, Preset] = {name: pick("preset", name) for name in values.get("preset", ())}
    names = {
        "objective": [*values.get("objective", ()), *(p.objective for p in presets.values())] or ["moon"],
        "topology": values.get("topology", [_topology({}, p) for p in presets.values()] or [Recipe.topology]),
    }
    taken = {(kind, name): options_of(name, kind) for kind, several in names.items() for name in several}
    _check_options(options, [key for keys in taken.values() for key in keys], presets)
    found: dict[str, Recipe] = {}
    for choice in product(*values.values(), *(_as_list(value) for value in options.values())):
        given = dict(zip(values, choice, strict=False))
        chosen = dict(zip(options, choice[len(values) :], strict=True))
        preset = presets.get(given.get("preset", ""))
        objective, topology = preset.objective if preset else given.get("objective", "moon"), _topology(given, preset)
        if not issubclass(pick("topology", topology), SparseTopology):
            given.pop("sparsity", None)  # an axis of the other topologies
        accepted = {*taken["objective", objective], *taken["topology", topology]}
        recipe = recipe_of(root, given, {key: value for key, value in chosen.items() if key in accepted})
        found[recipe.name] = recipe
    return list(found.values())


def recipe_of(root: Path, given: Mapping[str, Any], options: Mapping[str, Any]) -> Recipe:
    """Make the recipe of these parameters, given by their command-line names."""
    settings = {PARAMETERS[name].setting: value for name, value in given.items() if value is not None}
    return make_recipe(find_benchmark(root, settings.pop("benchmark")), options=options, root=root, **settings)


def _topology(given: Mapping[str, Any], preset: Preset | None) -> str:
    """The topology of these parameters."""
    return given.get("topology", (preset.settings if preset else {}).get("topology", Recipe.topology))


def _check_options(options: Mapping[str, Any], names: list[str], presets: Mapping[str, Preset]) -> None:
    """Raise a ValueError for an option that no objective or topology of the grid has, or that a preset sets."""
    for key in options:
        if key not in names:
            such = f"'{key}'{did_you_mean(key, names)}; choose from: {', '.join(dict.fromkeys(names)) or 'none'}"
            raise ValueError(f"no objective or topology of the grid has an option {such}")
        if fixed := [name for name, preset in presets.items() if key in preset.options]:
            raise ValueError(f"preset '{fixed[0]}' sets option '{key}' itself; leave one of the two out of the grid")


def _typed(name: str, value: Any) -> Any:
    kind = PARAMETERS[name].type
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        expected = {int: "an integer", float: "a number", str: "a string"}[kind]
        raise ValueError(f"'{name}' must be {expected}, not {value!r}")
    return value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
