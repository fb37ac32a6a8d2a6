"""Grids: expand axes into recipes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

from moon.data import find_benchmark
from moon.recipe.defaults import make_recipe, options_of
from moon.recipe.presets import Preset
from moon.recipe.recipe import PARAMETERS, Recipe
from moon.recipe.registry import pick
from moon.suggest import did_you_mean

OPTIONS = "set"  # the axis that is a table of the objectives' options


def expand(root: Path, axes: Mapping[str, Any]) -> list[Recipe]:
    """Return a recipe for every combination of the values of the axes, each once.

    The axis `set` is a table of options of the objectives; an objective takes those that it has. A dense network is not
    repeated for each sparsity.
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
    names = values.get("objective", [preset.objective for preset in presets.values()] or ["moon"])
    taken = {name: list(options_of(name)) for name in names}
    _check_options(options, taken, presets)
    found: dict[str, Recipe] = {}
    for choice in product(*values.values(), *(_as_list(value) for value in options.values())):
        given = dict(zip(values, choice, strict=False))
        chosen = dict(zip(options, choice[len(values) :], strict=True))
        preset = presets.get(given.get("preset", ""))
        objective = preset.objective if preset else given.get("objective", "moon")
        if given.get("topology") == "dense":
            given.pop("sparsity", None)  # an axis of the other topologies
        recipe = recipe_of(root, given, {key: value for key, value in chosen.items() if key in taken[objective]})
        found[recipe.name] = recipe
    return list(found.values())


def recipe_of(root: Path, given: Mapping[str, Any], options: Mapping[str, Any]) -> Recipe:
    """Make the recipe of these parameters, given by their command-line names."""
    settings = {PARAMETERS[name].setting: value for name, value in given.items() if value is not None}
    return make_recipe(find_benchmark(root, settings.pop("benchmark")), options=options, root=root, **settings)


def _check_options(options: Mapping[str, Any], taken: Mapping[str, list[str]], presets: Mapping[str, Preset]) -> None:
    """Raise a ValueError for an option that no objective of the grid has, or that a preset sets."""
    names = list(dict.fromkeys(key for keys in taken.values() for key in keys))
    for key in options:
        if key not in names:
            choices = f"choose from: {', '.join(names) or 'none'}"
            raise ValueError(f"no objective of the grid has an option '{key}'{did_you_mean(key, names)}; {choices}")
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
