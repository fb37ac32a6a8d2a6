"""Short labels that distinguish the methods of several runs, and the settings in which two methods differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import fields, replace
from itertools import combinations
from typing import Any

from moon.recipe import build
from moon.recipe.defaults import paper_options, quiet_epochs
from moon.recipe.presets import Preset, Scalar
from moon.recipe.recipe import Recipe
from moon.recipe.registry import options_of, pick, table

_RATES = ("lr_start", "lr_end", "lr_hold_share", "lr_cycles", "lr_peak")
# What a setting determines unless it is given: no further difference where that setting differs.
_FOLLOWS = {
    "training": {"outliers", "teachers_sha256"},
    "objective": {"outliers", "teachers_sha256"},
    "topology": {"delta_t_steps"},
    "optimizer": {"learning rate", "weight_decay"},
    "pretrained_sha256": {"learning rate", "first_mask"},
    "epochs": {"delta_t_steps", "warmup"},
    "batch_size": {"delta_t_steps"},
}
_OF_MASKS = {"sparsity", "allocation", "pattern", "first_mask", "drop_fraction", "delta_t_steps", "t_end_share"}


def labels(recipes: Iterable[Recipe]) -> dict[str, str]:
    """Label recipes by what distinguishes them, apart from the seed; the keys are the recipes' names."""
    first = ["benchmark", "objective", "topology", "sparsity", "objective_options"]  # shown for all or for none
    others = [f.name for f in fields(Recipe) if f.name not in (*first, "seed", "delta_t_steps")]
    order = [*first, *others, "delta_t_steps"]  # last, because its default depends on the other fields
    methods = {recipe.name: replace(recipe, seed=0, objective_options=_chosen(recipe)) for recipe in recipes}
    trainings = _trainings(methods.values())
    shown = {method: {"objective"} for method in methods.values()}

    def label(method: Recipe) -> str:
        parts = {name: _text(name, getattr(method, name)) for name in order} | {"objective": trainings[method]}
        return " ".join(parts[name] for name in order if name in shown[method] and parts[name])

    for name in order:
        alike: dict[str, list[Recipe]] = {}
        for method in shown:
            alike.setdefault(label(method), []).append(method)
        for tied in alike.values():
            if len({getattr(method, name) for method in tied}) > 1:
                for method in shown if name in first else _unusual(name, tied, shown):
                    shown[method].add(name)
    return {name: label(method) for name, method in methods.items()}


def _chosen(recipe: Recipe) -> tuple[tuple[str, Scalar], ...]:
    """The objective's options without those that `make_recipe` derives from the number of epochs."""
    if recipe.objective not in table("objective"):  # the package that provided it is not installed here
        return recipe.objective_options
    derived = quiet_epochs(recipe.objective, recipe.epochs)
    usual = {name: options_of(recipe.objective)[name] for name in derived}  # in runs of earlier versions
    return tuple(option for option in (usual | dict(recipe.objective_options)).items() if option not in derived.items())


def _unusual(name: str, methods: Iterable[Recipe], others: Iterable[Recipe]) -> list[Recipe]:
    """The methods whose value must be shown: all but those that share the value of a majority of their objective."""
    methods = list(methods)
    values = [getattr(other, name) for other in others if other.objective == methods[0].objective]
    ((usual, count),) = Counter(values).most_common(1)
    return [method for method in methods if 2 * count <= len(values) or getattr(method, name) != usual]


def _trainings(methods: Iterable[Recipe]) -> dict[Recipe, str]:
    """Name each training after its preset.

    The name is that of the objective if all trainings with this objective use its default settings, or if one of them
    matches no preset.
    """
    found: dict[Recipe, str] = {}
    for objective, names in _names_by_objective(methods).items():
        same = all(objective in some for some in names.values()) or not all(names.values())
        found |= {method: objective if same else some[0] for method, some in names.items()}
    return found


def _names_by_objective(methods: Iterable[Recipe]) -> dict[str, dict[Recipe, list[str]]]:
    """The names of each training, see `_names`, by objective."""
    by_objective: dict[str, list[Recipe]] = {}
    for method in methods:
        by_objective.setdefault(method.objective, []).append(method)
    found: dict[str, dict[Recipe, list[str]]] = {}
    for objective, alike in by_objective.items():
        shared = set.intersection(*({*method.objective_options} for method in alike))
        found[objective] = {method: _names(method, shared) for method in alike}
    return found


def _names(recipe: Recipe, shared: Set[tuple[str, Scalar]]) -> list[str]:
    """The presets that a recipe matches, and its objective's name if it uses the objective's default settings.

    Options that all compared trainings share are ignored.
    """
    if recipe.objective not in table("objective"):  # the package that provided it is not installed here
        return []
    kind = pick("objective", recipe.objective)
    candidates = {**table("preset"), recipe.objective: Preset(recipe.objective)}

    def matches(preset: Preset) -> bool:
        settings = {"rates": kind.rates, "vote_share": kind.vote_share} | dict(preset.settings)
        return (
            preset.objective == recipe.objective
            and preset.options.items() <= {*recipe.objective_options} <= preset.options.items() | shared
            and replace(build.rate(recipe), warmup=0.0) == pick("rates", settings.pop("rates"))
            and all(getattr(recipe, name, None) == value for name, value in settings.items())
        )

    found = [name for name, preset in candidates.items() if matches(preset)]
    specific = [
        name for name in found if candidates[name].options or candidates[name].settings.keys() - {"rates", "vote_share"}
    ]
    return specific or found


def _text(name: str, value: Any) -> str:
    if name.endswith("_options"):
        return " ".join(f"{key}={item}" for key, item in value)
    if name == "augment" and value == "none":
        return ""
    if name == "sparsity":
        return f"{100 * value:.10g}%"
    return value if isinstance(value, str) else f"{name}={value}"


def differences(recipes: Mapping[str, Recipe]) -> dict[tuple[str, str], list[str]]:
    """Name the settings in which each two of some methods differ.

    An objective with its default settings, or a preset, is one setting: `training`. What follows from another setting,
    such as the learning rate of an optimizer or the sparsity of a dense network, is not named.

    Args:
        recipes: One recipe of each method, by label; their seeds do not matter.

    Returns:
        The names of the settings, by the labels of the later and the earlier method.
    """
    methods = {label: replace(recipe, objective_options=_unusual_options(recipe)) for label, recipe in recipes.items()}
    names = {method: some for each in _names_by_objective(methods.values()).values() for method, some in each.items()}
    found: dict[tuple[str, str], list[str]] = {}
    for first, second in combinations(methods, 2):
        pair = methods[first], methods[second]
        in_each = [_differing(pair, [_settings(method) for method in pair])]
        if all(names[method] for method in pair):
            in_each.append(_differing(pair, [_settings_beside(method, names[method][0]) for method in pair]))
        found[second, first] = min(in_each, key=len)
    return found


def _unusual_options(recipe: Recipe) -> tuple[tuple[str, Scalar], ...]:
    """The objective's options without those that `make_recipe` derives, as far as the benchmark's name says them."""
    usual = paper_options(recipe.objective, recipe.benchmark.partition("-")[0])
    return tuple(option for option in _chosen(recipe) if option not in usual.items())


def _differing(pair: tuple[Recipe, Recipe], settings: list[dict[str, Any]]) -> list[str]:
    """The names of settings that differ and do not follow from others that do."""
    a, b = settings
    names = [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]
    following = {each for name in names for each in _FOLLOWS.get(name, ())}
    if "topology" in names:
        following |= _OF_MASKS if "dense" in (a["topology"], b["topology"]) else set()
        if any(getattr(table("topology").get(method.topology), "rates", None) for method in pair):
            following |= {"learning rate", "vote_share"}
    return [name for name in names if name not in following]


def _settings(recipe: Recipe) -> dict[str, Any]:
    """All settings but the seed; the learning rate is one, and so is each option of the objective."""
    left_out = {*_RATES, "objective_options", "seed", "pretrained", "teachers"}  # the last two are paths
    found = {f.name: getattr(recipe, f.name) for f in fields(Recipe) if f.name not in left_out}
    return found | dict(recipe.objective_options) | {"learning rate": [getattr(recipe, name) for name in _RATES]}


def _settings_beside(recipe: Recipe, name: str) -> dict[str, Any]:
    """The settings with one, `training`, in place of those that an objective or preset of this name determines."""
    preset = table("preset").get(name, Preset(recipe.objective))
    determined = {"objective", "learning rate", "vote_share", *dict(recipe.objective_options), *preset.settings}
    found = {key: value for key, value in _settings(recipe).items() if key not in determined - {"epochs"}}
    defaults = {f.name: f.default for f in fields(Recipe) if f.name in determined & {*preset.settings} - {"vote_share"}}
    return defaults | found | {"training": name}
