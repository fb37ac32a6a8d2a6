"""`make_recipe`: fills in what the benchmark, objective and topology determine, and checks the result."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, get_type_hints

import torch
from torch import nn

from moon.data import Benchmark, count_images, find_benchmark
from moon.recipe import build
from moon.recipe.parameters import converted
from moon.recipe.presets import Scalar
from moon.recipe.pretrained import load_pretrained, read_weights, weights_digest
from moon.recipe.recipe import Recipe
from moon.recipe.registry import full_name, kinds, options_of, pick
from moon.recipe.teachers import teachers_digest
from moon.sparse import DropSchedule, SparseTopology, Topology, sparse_weights
from moon.sparse.allocation import check_sparse
from moon.sparse.schedule import FEW_CHANGES, check_fraction
from moon.suggest import counted, did_you_mean
from moon.training import CosineRate

_log = logging.getLogger(__name__)
_TYPES = get_type_hints(Recipe)
_TRUTH = {"true": True, "1": True, "false": False, "0": False}

# w_f as the paper sets it for particular known sets.
_PAPER_OPTIONS: dict[tuple[str, str], dict[str, Scalar]] = {
    (objective, known_set): {"final": final}
    for objective in ("moon", "moon-logitnorm")
    for known_set, final in (("mnist", 0.01), ("cifar100", 2.0), ("imagenet", 0.001))
}


def make_recipe(
    benchmark: Benchmark | str,
    objective: str | None = None,
    *,
    preset: str | None = None,
    options: Mapping[str, Scalar] | None = None,
    rates: str | None = None,
    root: Path | str = "data",
    **settings: Any,
) -> Recipe:
    """Create a recipe.

    Values that are not given come from the preset, else from the topology, objective or benchmark, else from the
    defaults of `Recipe`. All names and values are checked here, before images are read or a folder is created.

    Three defaults shrink with a short run: `quiet_epochs` of an objective and `warmup` of a preset keep their share of
    100 epochs, and `delta_t_steps` is reduced, if the training images can be counted under `root`, so that the masks
    change at least five times.

    With `optimizer="adamw"` the rates of a schedule are a hundredth and `weight_decay` is 0.05. With `pretrained` the
    rates are a tenth, and the first masks keep the weights of largest magnitude. Where both are given, both apply. For
    these, `lr_start` scales the whole schedule.

    Args:
        benchmark: A benchmark, or the name of one.
        objective: The name of the objective; "moon" if neither it nor a preset is given.
        preset: The name of a preset (`moon methods preset` lists them), instead of an objective.
        options: Options of the objective and of the topology, such as `{"final": 2.0}`; `objective_options` is another
            name.
        rates: The name of a learning-rate schedule.
        root: The data root, where benchmarks of your own are looked up and training images are counted.
        **settings: Fields of `Recipe`, such as `sparsity=0.9`, `epochs=20` or `seed=1`.

    Returns:
        The recipe.

    Raises:
        ValueError: If a name is unknown or a value is invalid.

    Example:
        >>> from moon import make_recipe
        >>> recipe = make_recipe("digits", "cross-entropy", sparsity=0.9, epochs=20)
        >>> recipe.net, recipe.lr_start, recipe.vote_share
        ('lenet-norm', 0.1, 0.0)
    """
    if isinstance(benchmark, str):
        benchmark = find_benchmark(Path(root), benchmark)
    options = _as_dict(options) | _as_dict(settings.pop("objective_options", None))
    settings = {name: converted(name, _TYPES.get(name), value) for name, value in settings.items() if value is not None}
    if preset is None and objective is None and benchmark.preset and not options:
        preset = benchmark.preset
        _log.info(
            "%s has few small images: trained with the preset %s (moon methods %s); name an objective or a preset for "
            "anything else", benchmark.name, preset, preset
        )  # fmt: skip
    if preset is not None:
        named = pick("preset", preset)
        if objective is not None:
            raise ValueError(f"preset '{preset}' has objective '{named.objective}'; give a preset or an objective")
        objective, options = named.objective, dict(named.options) | options
        usual = dict(named.settings)
        if "warmup" in usual:
            epochs = min(settings.get("epochs", Recipe.epochs), Recipe.epochs)
            usual["warmup"] = usual["warmup"] * epochs / Recipe.epochs  # in this order 7 epochs have 0.35, exactly
        kind = pick("topology", settings.get("topology", Recipe.topology))
        pattern = pick("pattern", settings.get("pattern", Recipe.pattern))
        if not issubclass(kind, SparseTopology) or getattr(pattern, "sparsity", None):  # which determine the sparsity
            usual.pop("sparsity", None)
        settings = usual | settings | ({} if rates is None else {"rates": rates})
        rates = settings.pop("rates", None)
    recipe = _filled(benchmark, objective or "moon", options, rates, dict(settings))
    if "delta_t_steps" not in settings:
        recipe = _with_rewirings(recipe, benchmark, Path(root))
    _check(recipe, benchmark)
    return recipe


def _as_dict(options: Any) -> dict[str, Scalar]:
    try:
        return dict(options or {})
    except (TypeError, ValueError):
        raise ValueError(f"options must map names to values, such as {{'final': 2.0}}, not {options!r}") from None


def _with_rewirings(recipe: Recipe, benchmark: Benchmark, root: Path) -> Recipe:
    """The recipe with shorter intervals between mask updates if there would be too few of them."""
    kind = pick("topology", recipe.topology)
    if not issubclass(kind, SparseTopology) or not kind.rewires:
        return recipe
    if (images := count_images(root, benchmark.known_set, "train", benchmark)) is None:
        return recipe
    schedule = build.schedule(recipe, recipe.epochs * ceil(images / recipe.batch_size))
    interval = max(1, (schedule.t_end - 1) // FEW_CHANGES)
    return replace(recipe, delta_t_steps=interval) if interval < schedule.delta_t else recipe


def _filled(
    benchmark: Benchmark, objective: str, options: Mapping[str, Scalar], rates: str | None, settings: dict[str, Any]
) -> Recipe:
    """The recipe with defaults filled in."""
    settings |= {name: full_name(name, settings[name]) for name in settings.keys() & {*kinds()}}
    objective, name = full_name("objective", objective), settings.get("topology", Recipe.topology)
    kind, topology = pick("objective", objective), pick("topology", name)
    epochs, asked = settings.get("epochs", Recipe.epochs), settings.pop("vote_share", None)
    known = paper_options(objective, benchmark.known_set)
    own, of_topology = _options(options, objective, name)
    rate = pick("rates", rates or topology.rates or kind.rates)
    vote_share = next(share for share in (asked, topology.vote_share, kind.vote_share) if share is not None)
    hold = rate.hold
    if rate.cycles:
        hold = _share_of_cycles(rate, asked, epochs)
        vote_share = 0.0 if asked == 0 else hold
    sparsity = _sparsity(topology, settings.pop("sparsity", None), settings.get("pattern", Recipe.pattern))
    scale = _rate_scale(rate, settings)
    filled = {"net": benchmark.net, "lr_start": rate.start * scale} | _of_start(settings) | settings
    if names := settings.get("teachers"):
        filled["teachers_sha256"] = teachers_digest(names, benchmark)
    if unknown := filled.keys() - Recipe.__dataclass_fields__.keys():
        name = min(unknown)
        raise ValueError(f"a recipe has no setting '{name}'{did_you_mean(name, Recipe.__dataclass_fields__)}")
    schedule = {
        "lr_end": rate.end * scale, "lr_hold_share": hold, "lr_cycles": rate.cycles, "lr_peak": rate.peak * scale,
    }  # fmt: skip
    if taken := schedule.keys() & filled.keys():
        raise ValueError(f"{min(taken)} follows from the learning-rate schedule; choose another schedule (rates)")
    return Recipe(
        benchmark=benchmark.name,
        objective=objective,
        objective_options=tuple((quiet_epochs(objective, epochs) | known | own).items()),
        topology_options=tuple(of_topology.items()),
        sparsity=sparsity,
        vote_share=vote_share,
        **schedule,
        **filled,
    )


def _share_of_cycles(rate: CosineRate, asked: float | None, epochs: int) -> float:
    """The share of a run that the cycles of its learning rate take: all have the same number of whole epochs."""
    cycle = max(1, round((asked or rate.hold) * epochs / rate.cycles))
    if rate.cycles * cycle >= epochs:
        raise ValueError(
            f"epochs={epochs} leaves no epoch before the last {rate.cycles} cycles of the learning rate; "
            f"train for at least {rate.cycles + 1} epochs"
        )
    return rate.cycles * cycle / epochs


def _sparsity(topology: type[Topology], given: float | None, pattern: str) -> float:
    """The sparsity of a run: the given one, else that of the pattern, else the default; 0 for a dense network."""
    if issubclass(topology, SparseTopology):
        usual = getattr(pick("pattern", pattern), "sparsity", None) or Recipe.sparsity  # a pattern may allow any
        return usual if given is None else given
    if given:
        raise ValueError(f"a dense network has no sparsity ({given:g} was given); choose a sparse topology")
    return 0.0


def _rate_scale(rate: CosineRate, settings: Mapping[str, Any]) -> float:
    """What a schedule is multiplied by: 1 for SGD from scratch, less for AdamW and for pretrained weights.

    If a first rate is given for these two, the whole schedule follows it, so that no later rate is higher. For SGD from
    scratch the last rate stays.
    """
    usual = (0.01 if settings.get("optimizer") == "adamw" else 1.0) * (0.1 if settings.get("pretrained") else 1.0)
    given = settings.get("lr_start")
    return usual if given is None or usual == 1.0 or not rate.start else given / rate.start


def _of_start(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that AdamW and pretrained weights determine."""
    found: dict[str, Any] = {"weight_decay": 0.05} if settings.get("optimizer") == "adamw" else {}
    if path := settings.get("pretrained"):
        found["pretrained_sha256"] = weights_digest(Path(path))
        if issubclass(pick("topology", settings.get("topology", Recipe.topology)), SparseTopology):
            found["first_mask"] = "magnitude"
    return found


def paper_options(objective: str, known_set: str) -> dict[str, Scalar]:
    """The options of an objective that the paper sets for a known set."""
    innermost = objective.rpartition("+")[2]  # of rotpred+moon the second
    return _PAPER_OPTIONS.get((innermost, known_set), {})


def quiet_epochs(objective: str, epochs: int) -> dict[str, Scalar]:
    """The option `quiet_epochs` of an objective in a run shorter than 100 epochs: the same share, if it has one."""
    usual = options_of(objective).get("quiet_epochs")
    if usual is None or epochs >= Recipe.epochs:
        return {}
    return {"quiet_epochs": shortened(int(usual), epochs)}


def shortened(quiet: int, epochs: int) -> int:
    """`quiet` of 100 epochs as the same share of fewer epochs, at least one, with at least one epoch after them."""
    return max(0, min(max(1, round(quiet * epochs / Recipe.epochs)), epochs - 1))


def _options(given: Mapping[str, Scalar], objective: str, topology: str) -> tuple[dict[str, Scalar], dict[str, Scalar]]:
    """The given options of the objective and of the topology, checked and converted to the types of their defaults."""
    owners = (objective, options_of(objective), {}), (topology, options_of(topology, "topology"), {})
    for key, value in given.items():
        found = [owner for owner in owners if key in owner[1]]
        if not found:
            allowed = [name for _, names, _ in owners for name in names]
            choices = f"choose from: {', '.join(allowed)}" if allowed else "it has none"
            who = f"objective '{objective}'" + (f" with topology '{topology}'" if owners[1][1] else "")
            raise ValueError(f"{who} has no option '{key}'{did_you_mean(str(key), allowed)}; {choices}")
        if len(found) > 1:
            raise ValueError(f"'{objective}' and '{topology}' both have an option '{key}'; rename that of yours")
        ((name, usual, options),) = found
        kind = type(usual[key])
        try:
            options[key] = _TRUTH[str(value).lower()] if kind is bool else kind(value)
            is_cut = kind is int and not isinstance(value, str) and options[key] != value
        except (KeyError, TypeError, ValueError, OverflowError):
            is_cut = True
        if is_cut:
            raise ValueError(f"option '{key}' of '{name}' must be of type {kind.__name__}, not '{value}'")
    return owners[0][2], owners[1][2]


def _check(recipe: Recipe, benchmark: Benchmark) -> None:
    """Build what can be built without data, so that invalid recipes fail here."""
    _check_others(recipe)
    build.rate(recipe)
    build.schedule(recipe, 1000 * recipe.epochs)
    _check_votes(recipe)
    model = _empty_network(recipe, benchmark)
    if recipe.pretrained:
        load_pretrained(model, read_weights(Path(recipe.pretrained), recipe.net), recipe.pretrained, recipe.net)
    shapes = {name: tuple(weight.shape) for name, weight in sparse_weights(model).items()}
    allocation, topology = pick("allocation", recipe.allocation), pick("topology", recipe.topology)
    if issubclass(topology, SparseTopology):
        pattern = pick("pattern", recipe.pattern)
        topology.check_pattern(pattern)
        densities = pattern.densities(shapes, recipe.sparsity, allocation)
        check_sparse(densities, recipe.sparsity, topology.__name__)
        if topology.only_replaces() and not topology.superposes:  # a ticket replaces a fraction of its own
            check_fraction(DropSchedule(t_end=2, delta_t=1, fraction=recipe.drop_fraction), topology.__name__)
        if recipe.backbone_lr_factor == 0 and topology.rewires:
            raise ValueError(
                f"backbone_lr_factor=0 keeps all layers but the classifier as they are, so the weights that "
                f"{topology.__name__} grows there would stay zero; use the topology 'static', or a factor above 0"
            )
    elif recipe.first_mask != Recipe.first_mask:
        raise ValueError(f"a dense network has no masks (first_mask={recipe.first_mask} was given)")
    elif recipe.pattern:
        raise ValueError(f"a dense network has no pattern ('{recipe.pattern}' was given); choose a sparse topology")
    build.objective(recipe, model, build.PLACEHOLDER, [nn.Identity()])


def _empty_network(recipe: Recipe, benchmark: Benchmark) -> nn.Module:
    """The network without memory for its weights; a net whose constructor needs values gets memory."""
    try:
        with torch.device("meta"):
            return build.network(recipe, benchmark, "meta")
    except (NotImplementedError, RuntimeError):
        return build.network(recipe, benchmark, "cpu")


def _check_others(recipe: Recipe) -> None:
    """Raise a ValueError unless outliers and teachers are given where the objective needs them, and only there."""
    takes = pick("objective", recipe.objective).takes()
    for name, why in (
        ("outliers", "trains with images of no known class; name a set of them"),
        ("teachers", "learns from trained networks; name their run folders"),
    ):
        given = getattr(recipe, name)
        if name in takes and not given:
            raise ValueError(f"objective '{recipe.objective}' {why} ({name})")
        if given and name not in takes:
            raise ValueError(f"objective '{recipe.objective}' takes no {name}, but '{given}' was given")
    if recipe.outliers == recipe.benchmark:
        raise ValueError(f"'{recipe.outliers}' is the known set; outliers are images of no known class")


def _check_votes(recipe: Recipe) -> None:
    """Raise a ValueError if votes are cast while the masks still change, for any number of steps per epoch."""
    kind, first, changing = pick("topology", recipe.topology), recipe.vote_from, int(recipe.t_end_share * recipe.epochs)
    if first is None or not issubclass(kind, SparseTopology) or not kind.rewires or kind.superposes:
        return
    if first + 1 < changing:
        raise ValueError(
            f"the first vote is cast after {first + 1} of {recipe.epochs} epochs, but the masks change during the "
            f"first {changing}; let at most {counted(recipe.epochs + 1 - changing, 'epoch')} vote (vote_share), or "
            "stop changing the masks earlier (t_end_share)"
        )
