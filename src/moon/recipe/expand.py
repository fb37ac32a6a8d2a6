"""What a grid is made of: axes and files become recipes, and recipes get labels."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from moon.data import benchmark
from moon.recipe import build
from moon.recipe.presets import PRESETS, Preset
from moon.recipe.recipe import RATES, Recipe, Scalar
from moon.suggest import did_you_mean

# What a grid may vary, by the words of `moon train`: what `build.recipe` calls it, and its type.
AXES: dict[str, tuple[str, type]] = {
    "benchmark": ("benchmark", str),
    "preset": ("preset", str),
    "objective": ("objective", str),
    "topology": ("topology", str),
    "sparsity": ("sparsity", float),
    "pattern": ("pattern", str),
    "allocation": ("allocation", str),
    "net": ("net", str),
    "outliers": ("outliers", str),
    "rates": ("rates", str),
    "lr": ("lr", float),
    "vote": ("vote_share", float),
    "weight_decay": ("weight_decay", float),
    "delta_t": ("delta_t_steps", int),
    "drop": ("drop_fraction", float),
    "t_end": ("t_end_share", float),
    "epochs": ("epochs", int),
    "batch_size": ("batch_size", int),
    "precision": ("precision", str),
    "seed": ("seed", int),
}


def recipes(root: Path, axes: Mapping[str, Any]) -> list[Recipe]:
    """Every combination of the values of the axes, once; `set` is a mapping of the objective's options."""
    for word in axes:
        if word not in AXES and word != "set":
            raise ValueError(f"a grid has no '{word}'{did_you_mean(word, [*AXES, 'set'])}; known: {', '.join(AXES)}, set")
    options = axes.get("set", {})
    if not isinstance(options, Mapping):
        raise ValueError(f"'set' must be a table of options, such as set.final = 2, not {options!r}")
    given_values = {word: [_typed(word, one) for one in _several(axes[word])] for word in axes if word != "set"}
    for word, several in given_values.items():
        if not several:
            raise ValueError(f"'{word}' has no value; give it at least one, or leave it out")
    words = list(given_values)
    values = [*given_values.values(), *(_several(value) for value in options.values())]
    presets = {name: build.pick(build.TABLES["preset"], name, "preset") for name in given_values.get("preset", ())}
    objectives = given_values.get("objective", [preset.objective for preset in presets.values()] or ["moon"])
    kinds = {name: build.pick(build.TABLES["objective"], name, "objective") for name in objectives}
    has = {name: [key for key, p in kind.takes().items() if p.default is not p.empty] for name, kind in kinds.items()}
    known = list(dict.fromkeys(key for keys in has.values() for key in keys))
    for key in options:
        if key not in known:
            names = ", ".join(known) or "none"
            raise ValueError(f"no objective of the grid has an option '{key}'{did_you_mean(key, known)}; known: {names}")
        if fixed := [name for name, preset in presets.items() if key in preset.options]:
            raise ValueError(f"option '{key}' is what makes preset '{fixed[0]}'; leave one of the two out of the grid")
    found: dict[str, Recipe] = {}
    for choice in product(*values):
        given = {AXES[word][0]: value for word, value in zip(words, choice, strict=False)}
        chosen = dict(zip(options, choice[len(words) :], strict=True))
        # Of several objectives each takes the options it has.
        named = presets.get(given.get("preset"))
        objective = named.objective if named else given.get("objective", "moon")
        chosen = {key: value for key, value in chosen.items() if key in has.get(objective, ())}
        if "benchmark" not in given:
            raise ValueError("a grid needs at least one benchmark")
        if given.get("topology") == "dense":
            given.pop("sparsity", None)  # it has none; with other topologies it is an axis of theirs
        row = benchmark(root, given.pop("benchmark"))
        recipe = build.asked(row, given, chosen)
        found[recipe.name] = recipe  # dense networks of several sparsities are one
    return list(found.values())


def read_file(root: Path, path: Path) -> list[Recipe]:
    """The recipes of a grid file: TOML whose keys are the axes, and blocks `[[runs]]` that add to or replace them."""
    try:
        common = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read ({error})") from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: is no TOML ({error})") from None
    blocks = common.pop("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise ValueError(f"{path}: 'runs' must be blocks that begin with [[runs]]")
    found: dict[str, Recipe] = {}
    for number, block in enumerate(blocks, start=1):
        try:
            other = {"preset": "objective", "objective": "preset"}  # each stands for the other
            kept = {word: value for word, value in common.items() if other.get(word) not in block}
            found |= {recipe.name: recipe for recipe in recipes(root, kept | block)}
        except ValueError as error:
            where = f"{path}, block {number} of [[runs]]" if block else str(path)
            raise type(error)(f"{where}: {error}") from None
    return list(found.values())


def _typed(word: str, value: Any) -> Any:
    kind = AXES[word][1]
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        called = {int: "a whole number", float: "a number", str: "a word"}[kind]
        raise ValueError(f"'{word}' must be {called}, not {value!r}")
    return value


def _several(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]


def labels(recipes: Iterable[Recipe]) -> dict[str, str]:
    """A label for each recipe, by its name, as short as tells the methods apart, whatever the seed."""
    first = ["benchmark", "objective", "topology", "sparsity", "objective_options"]  # what one must show, all do
    order = first + [f.name for f in fields(Recipe) if f.name not in (*first, "seed")]
    methods = {recipe.name: replace(recipe, seed=0) for recipe in recipes}
    trainings = _trainings(methods.values())
    shown = {method: {"objective"} for method in methods.values()}

    def label(method: Recipe) -> str:
        words = {name: _word(name, getattr(method, name)) for name in order} | {"objective": trainings[method]}
        return " ".join(words[name] for name in order if name in shown[method] and words[name])

    for name in order:
        alike: dict[str, list[Recipe]] = {}
        for method in shown:
            alike.setdefault(label(method), []).append(method)
        for tied in alike.values():
            if len({getattr(method, name) for method in tied}) > 1:
                for method in shown if name in first else _unusual(name, tied, shown):
                    shown[method].add(name)
    return {name: label(method) for name, method in methods.items()}


def _unusual(name: str, methods: Iterable[Recipe], others: Iterable[Recipe]) -> list[Recipe]:
    """Those whose value is not the one that most have of all with their objective: that one goes without saying."""
    methods = list(methods)
    values = [getattr(other, name) for other in others if other.objective == methods[0].objective]
    ((usual, count),) = Counter(values).most_common(1)
    return [method for method in methods if 2 * count <= len(values) or getattr(method, name) != usual]


def _trainings(methods: Iterable[Recipe]) -> dict[Recipe, str]:
    """What the trainings are called: by their presets, or by their objectives where an objective is used in one way,
    its own, or in ways that have no names."""
    by_objective: dict[str, list[Recipe]] = {}
    for method in methods:
        by_objective.setdefault(method.objective, []).append(method)
    called: dict[Recipe, str] = {}
    for objective, alike in by_objective.items():
        shared = set.intersection(*({*method.objective_options} for method in alike))
        names = [_names(method, shared) for method in alike]
        same = all(objective in some for some in names) or not all(names)
        called |= {method: objective if same else some[0] for method, some in zip(alike, names, strict=True)}
    return called


def _names(recipe: Recipe, shared: Set[tuple[str, Scalar]]) -> list[str]:
    """The presets that this training is, and its objective, if it is that one's own; options that are shared with all
    that it is compared with do not count."""
    kind = build.TABLES["objective"].get(recipe.objective)
    if kind is None:  # somebody's own
        return []
    candidates = {**PRESETS, recipe.objective: Preset(recipe.objective)}

    def is_called(preset: Preset) -> bool:
        settings = {"rates": kind.rates, "vote_share": kind.vote_share} | dict(preset.settings)
        return (
            preset.objective == recipe.objective
            and preset.options.items() <= {*recipe.objective_options} <= preset.options.items() | shared
            and build.rate(recipe) == RATES[settings.pop("rates")]
            and all(getattr(recipe, name, None) == value for name, value in settings.items())
        )

    found = [name for name, preset in candidates.items() if is_called(preset)]
    says_more = [
        name for name in found if candidates[name].options or candidates[name].settings.keys() - {"rates", "vote_share"}
    ]
    return says_more or found


def _word(name: str, value: Any) -> str:
    if name == "objective_options":
        return " ".join(f"{key}={item}" for key, item in value)
    if name == "sparsity":
        return f"{100 * value:.10g}%"
    return value if isinstance(value, str) else f"{name}={value}"
