"""The runs that the paper's tables and figures need: recipes for measurements."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from moon.data import Benchmark, find_benchmark, has_set
from moon.errors import DamagedCheckpoint
from moon.paper.spec import EPOCHS, Item, Measurement, Scale
from moon.recipe import Preset, Recipe, make_recipe, table
from moon.recipe.defaults import shortened
from moon.recipe.presets import MOON_SCHEDULE, PLAIN_SCHEDULE
from moon.run.folder import is_done

NO_VOTE = ("logitnorm", "vos", "dac", "mixup", "label-smoothing", "eow-softmax")  # other methods, which have no vote

# Not the authors' (100, 1); stated explicitly, so that the recipes do not depend on the default (docs/LOG.md).
_OPTIONS = {"eow-softmax": {"steps": 20, "step": 0.01}}

# How the networks of the tables are trained. `NAME+vote` adds the learning rates and the vote of the control.
TRAININGS: dict[str, Preset] = {
    **table("preset"),
    **{name: Preset(name, _OPTIONS.get(name, {})) for name in ("moon", "moon-logitnorm", *NO_VOTE, "cigl")},
    **{f"{name}+vote": Preset(name, _OPTIONS.get(name, {}), MOON_SCHEDULE) for name in NO_VOTE},
    "cigl-alone": Preset("cigl", settings=PLAIN_SCHEDULE),  # without the vote that belongs to it
}


def training_of(name: str) -> Preset:
    """How a network is trained: the training of this name, else the preset or the objective."""
    name = "moon" if "=" in name else name
    return TRAININGS.get(name) or table("preset").get(name) or Preset(name)


def recipe_for(
    measurement: Measurement, scale: Scale, benchmark: Benchmark, seed: int, root: Path = Path("data")
) -> Recipe:
    """The recipe of the run that a measurement needs, at a scale, with the benchmark to use for its data."""
    network = replace(measurement, data="", detector="", metric="")  # only these fields change the run
    return replace(_recipe(network, benchmark, scale.epochs, tuple(scale.settings.items()), root), seed=seed)


@cache  # many measurements share a run, and checking a recipe takes a while
def _recipe(
    network: Measurement, benchmark: Benchmark, epochs: int, common: tuple[tuple[str, Any], ...], root: Path
) -> Recipe:
    name, _, value = network.training.partition("=")
    training = training_of(network.training)
    options = dict(training.options)
    settings: dict[str, Any] = dict(common) | dict(training.settings)
    if name == "w_f":
        options |= {"final": float(value)}
    elif name == "T_e":
        options |= {"quiet_epochs": shortened(int(value), epochs)}
    elif name == "votes":
        settings |= {"vote_share": max(1, round(int(value) * epochs / EPOCHS)) / epochs}
    if benchmark.known_set == "imagenet":
        settings |= {"batch_size": 32}  # the paper's
    if (benchmark.known_set, benchmark.net) == ("mnist", "lenet"):
        settings.setdefault("net", "resnet18")  # the paper's; LeNet is OpenOOD's
    settings |= {"topology": network.topology, "epochs": epochs}
    settings |= {"sparsity": None if network.topology == "dense" else network.sparsity}
    return make_recipe(benchmark, training.objective, options=options, root=root, **settings)


def missing_data(root: Path, items: Iterable[Item], scale: Scale) -> dict[str, str]:
    """The benchmark of each data set of the paper that some items need and that is not available."""
    missing = {}
    for data in dict.fromkeys(measurement.data for item in items for measurement in item.measurements):
        benchmark = find_benchmark(root, scale.benchmarks[data])
        if not all(has_set(root, benchmark.known_set, split, benchmark) for split in ("train", "test")):
            missing[data] = benchmark.name
    return missing


def needed_runs(
    root: Path, items: Iterable[Item], scale: Scale, without: Iterable[str] = ()
) -> dict[Recipe, list[str]]:
    """The runs that some items need, and the detectors to score each with; `msp` is always one of them.

    They are ordered by seed, so that tables are complete for the first seed first. Data sets `without` are left out.
    """
    benchmarks = cache(lambda data: find_benchmark(root, scale.benchmarks[data]))
    measurements = dict.fromkeys(
        scale.with_nearest_sparsity(measurement)
        for item in items
        for measurement in item.measurements
        if measurement.data not in without
    )
    detectors: dict[Recipe, dict[str, None]] = {}
    for seed in range(scale.seeds):
        for measurement in measurements:
            if seed in scale.seeds_for(measurement):
                recipe = recipe_for(measurement, scale, benchmarks(measurement.data), seed, root)
                names = detectors.setdefault(recipe, {"msp": None})  # the figures of a run show msp
                names |= {measurement.detector: None} if measurement.detector else {}
    return {recipe: list(names) for recipe, names in detectors.items()}


def finished_runs(folder: Path) -> list[Recipe]:
    """The recipes of the runs in a folder that are finished and scored."""
    found: list[Recipe] = []
    for path in sorted(folder.glob("*/recipe.json")):
        if is_done(path.parent) and (path.parent / "scores.json").exists():
            with suppress(DamagedCheckpoint):  # tables name a damaged run that they need
                found.append(Recipe.load(path))
    return found


def methods_not_shown(finished: Iterable[Recipe], items: Iterable[Item]) -> list[str]:
    """The objectives and topologies of finished runs that these tables and figures do not show."""
    measured = {measurement for item in items for measurement in item.measurements}
    shown = {m.topology for m in measured} | {training_of(m.training).objective for m in measured}
    return sorted({name for recipe in finished for name in (recipe.objective, recipe.topology)} - shown)
