"""Short labels that distinguish the methods of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Set
from dataclasses import fields, replace
from typing import Any

from moon.recipe import build
from moon.recipe.defaults import quiet_epochs
from moon.recipe.presets import Preset, Scalar
from moon.recipe.recipe import Recipe
from moon.recipe.registry import options_of, pick, table


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
    by_objective: dict[str, list[Recipe]] = {}
    for method in methods:
        by_objective.setdefault(method.objective, []).append(method)
    found: dict[Recipe, str] = {}
    for objective, alike in by_objective.items():
        shared = set.intersection(*({*method.objective_options} for method in alike))
        names = [_names(method, shared) for method in alike]
        same = all(objective in some for some in names) or not all(names)
        found |= {method: objective if same else some[0] for method, some in zip(alike, names, strict=True)}
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
