"""Names become objects here, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from moon.data import AnySet, Batches, Benchmark, Listed, Streams
from moon.detect import DETECTORS, Detector
from moon.evidence import OpenHead, classifier_name, open_head
from moon.nets import NETS
from moon.objectives import OBJECTIVES, Objective
from moon.objectives.base import Draw
from moon.recipe.presets import PRESETS
from moon.recipe.recipe import RATES, Recipe, Scalar
from moon.run.images import streams
from moon.seeds import derive
from moon.sparse import (
    ALLOCATIONS,
    TOPOLOGIES,
    Dense,
    DropSchedule,
    NOfM,
    SparseTopology,
    TicketSchedule,
    Topology,
    sparse_weights,
)  # fmt: skip
from moon.sparse.pattern import ANYWHERE, Anywhere
from moon.suggest import did_you_mean
from moon.training import CosineRate, Training
from moon.training.ranks import Ranks

TABLES: dict[str, Mapping[str, Any]] = {
    "objective": OBJECTIVES,
    "topology": TOPOLOGIES,
    "allocation": ALLOCATIONS,
    "rates": RATES,
    "detector": DETECTORS,
    "net": NETS,
    "preset": PRESETS,
}


def pick(table: Mapping[str, Any], name: str, kind: str) -> Any:
    """The entry of a table, or a `ValueError` that names the nearest right word."""
    if name in table:
        return table[name]
    raise ValueError(f"unknown {kind} '{name}'{did_you_mean(name, table)}; known: {', '.join(table)}")


# What the paper sets for one known set alone.
_PAPER_OPTIONS: dict[tuple[str, str], dict[str, Scalar]] = {
    (objective, row): {"final": final}
    for objective in ("moon", "moon-logitnorm")
    for row, final in (("mnist", 0.01), ("cifar100", 2.0), ("imagenet", 0.001))
}


def recipe(
    row: Benchmark,
    objective: str = "moon",
    *,
    options: Mapping[str, Scalar] | None = None,
    rates: str | None = None,
    lr: float | None = None,
    vote_share: float | None = None,
    net: str | None = None,
    topology: str = "rigl",
    sparsity: float | None = None,
    pattern: str = "",
    epochs: int = 100,
    **rest: Any,
) -> Recipe:
    """A recipe with the benchmark's net and the objective's and topology's own settings where none are given.

    All names and values are checked here, so that nothing is refused after data were read or a folder made.
    """
    kind, wiring = pick(OBJECTIVES, objective, "objective"), pick(TOPOLOGIES, topology, "topology")
    options = _PAPER_OPTIONS.get((objective, row.known_set), {}) | dict(options or {})
    own = pick(RATES, rates or wiring.rates or kind.rates, "learning rates")
    share = next(s for s in (vote_share, wiring.vote_share, kind.vote_share) if s is not None)
    hold = own.hold
    if own.cycles:  # of whole epochs, all of one length; each ends with a vote
        cycle = max(1, round((vote_share or hold) * epochs / own.cycles))
        hold = own.cycles * cycle / epochs
        share = 0.0 if vote_share == 0 else hold
        if hold >= 1:
            raise ValueError(
                f"epochs={epochs} leave none before the last {own.cycles} cycles of the learning rate; "
                f"train at least {own.cycles + 1}"
            )
    if topology == "dense" and sparsity:
        raise ValueError(f"a dense network has no sparsity; leave out --sparsity {sparsity:g}, or choose a topology")
    if sparsity is None:
        sparsity = _pattern(pattern).sparsity or Recipe.sparsity
    made = Recipe(
        benchmark=row.name,
        net=row.net if net is None else net,
        objective=objective,
        objective_options=tuple(_options(kind.takes(), options, objective).items()),
        topology=topology,
        sparsity=0.0 if topology == "dense" else sparsity,
        pattern=pattern,
        epochs=epochs,
        lr_start=own.start if lr is None else lr,
        lr_end=own.end,
        lr_hold_share=hold,
        lr_cycles=own.cycles,
        lr_peak=own.peak,
        vote_share=share,
        **rest,
    )
    _check(made, row)
    return made


def asked(row: Benchmark, given: Mapping[str, Any], options: Mapping[str, Scalar]) -> Recipe:
    """The recipe of these settings, and of `preset`, if they name one; what is given counts more than the preset."""
    settings = dict(given)
    name = settings.pop("preset", None)
    if name is not None:
        preset = pick(PRESETS, name, "preset")
        if "objective" in settings:
            raise ValueError(f"preset '{name}' has its objective, {preset.objective}; leave out one of the two")
        settings = {"objective": preset.objective} | dict(preset.settings) | settings
        options = dict(preset.options) | dict(options)
    return recipe(row, options=options, **settings)


def _check(recipe: Recipe, row: Benchmark) -> None:
    """Make of the recipe what can be made of it without data."""
    needs = "outliers" in pick(OBJECTIVES, recipe.objective, "objective").takes()
    if needs and not recipe.outliers:
        raise ValueError(
            f"objective '{recipe.objective}' learns from images that are known to be of no known class; "
            "name a set of them: --outliers SET"
        )
    if recipe.outliers == recipe.benchmark:
        raise ValueError(f"'{recipe.outliers}' is the known set; outliers are images of no known class")
    if recipe.outliers and not needs:
        raise ValueError(f"objective '{recipe.objective}' takes no outliers; leave out --outliers {recipe.outliers}")
    rate(recipe)
    schedule(recipe, 1000 * recipe.epochs)
    _check_votes(recipe)
    with torch.device("meta"):
        model = network(recipe, row, "meta")
    shapes = {name: tuple(weight.shape) for name, weight in sparse_weights(model).items()}
    allocation = pick(ALLOCATIONS, recipe.allocation, "allocation")
    if recipe.topology != "dense":
        pattern = _pattern(recipe.pattern)
        pick(TOPOLOGIES, recipe.topology, "topology").check_pattern(pattern)
        pattern.densities(shapes, recipe.sparsity, allocation)
    elif recipe.pattern:
        raise ValueError(f"a dense network has no pattern; leave out --pattern {recipe.pattern}")
    loss(recipe, model, (lambda count: (torch.empty(count), torch.empty(count)), 1))


def _check_votes(recipe: Recipe) -> None:
    """Refuse what every number of steps would refuse: votes of networks whose masks still change."""
    kind, first, changing = TOPOLOGIES[recipe.topology], recipe.vote_from, int(recipe.t_end_share * recipe.epochs)
    if first is None or not issubclass(kind, SparseTopology) or not kind.rewires or kind.superposes:
        return
    if first + 1 < changing:
        raise ValueError(
            f"the first vote is cast after {first + 1} of {recipe.epochs} epochs, but the masks change in the first "
            f"{changing}; let the last {recipe.epochs + 1 - changing} or fewer vote (--vote), or rewire less long "
            "(--t-end)"
        )


def _options(takes: Mapping[str, inspect.Parameter], given: Mapping[str, Scalar], name: str) -> dict[str, Scalar]:
    """The options, checked by name against the scalar parameters and converted to their defaults' types."""
    allowed = {key: p.default for key, p in takes.items() if isinstance(p.default, Scalar)}
    options: dict[str, Scalar] = {}
    for key, value in given.items():
        if key not in allowed:
            known = f"known: {', '.join(allowed)}" if allowed else "it has none"
            raise ValueError(f"'{name}' has no option '{key}'{did_you_mean(key, allowed)}; {known}")
        kind = type(allowed[key])
        try:
            options[key] = kind(value)
        except ValueError:
            raise ValueError(f"option '{key}' of '{name}' must be a {kind.__name__}, not '{value}'") from None
    return options


def loss(recipe: Recipe, model: nn.Module, outliers: tuple[Draw, int] | None = None) -> Objective:
    """The objective for this model; `outliers` are drawn by the first and have as many classes as the second says."""
    kind = pick(OBJECTIVES, recipe.objective, "objective")
    head = model.get_submodule(classifier_name(model))
    assert isinstance(head, nn.Linear)
    facts: dict[str, Any] = {
        "epochs": recipe.epochs,
        "num_known": head.out_features - isinstance(head, OpenHead),
        "num_features": head.in_features,
    }
    if outliers is not None:
        facts |= {"outliers": outliers[0], "outlier_classes": outliers[1]}
    asked = {name: facts[name] for name in kind.takes() if name in facts}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("objective", recipe.seed))
        return kind.for_run(**asked, **dict(recipe.objective_options))


def rate(recipe: Recipe) -> CosineRate:
    return CosineRate(recipe.lr_start, recipe.lr_end, recipe.lr_hold_share, recipe.lr_cycles, recipe.lr_peak)


def schedule(recipe: Recipe, steps: int) -> DropSchedule:
    """The schedule of a run of so many steps."""
    t_end, rest = int(recipe.t_end_share * steps), (recipe.delta_t_steps, recipe.drop_fraction)
    if not pick(TOPOLOGIES, recipe.topology, "topology").superposes:
        return DropSchedule(t_end, *rest)
    if not recipe.lr_cycles:
        raise ValueError(f"topology '{recipe.topology}' needs learning rates with cycles, such as --rates tickets")
    cycle = recipe.vote_every * steps // recipe.epochs
    first = steps - recipe.lr_cycles * cycle
    return TicketSchedule(min(t_end, first), *rest, first=first, cycle=cycle, tickets=recipe.lr_cycles)


def _pattern(text: str) -> NOfM | Anywhere:
    """The pattern of this name, "n:m"; nothing is no constraint."""
    if not text:
        return ANYWHERE
    n, _, m = text.partition(":")
    if not (n.isdecimal() and m.isdecimal()):
        raise ValueError(f"a pattern is n:m, such as 2:4, not '{text}'")
    return NOfM(int(n), int(m))


def network(recipe: Recipe, benchmark: Benchmark, device: torch.device | str) -> nn.Module:
    """The net with K outputs, or K+1 if the objective needs the unknown one; its weights come from the seed."""
    make = pick(NETS, recipe.net, "net")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("weights", recipe.seed))
        model = make(num_classes=benchmark.num_known, in_channels=benchmark.channels)
        if pick(OBJECTIVES, recipe.objective, "objective").extra_logits:
            model = open_head(model)
    return model.to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


@torch.no_grad()
def _try_out(model: nn.Module, objective: Objective, recipe: Recipe, benchmark: Benchmark) -> None:
    """Refuse a net that cannot take the benchmark's images, and an objective that cannot take the net or the batch."""
    device = next(model.parameters()).device
    shape = recipe.batch_size, benchmark.channels, benchmark.size, benchmark.size
    x, y = torch.zeros(shape, device=device), torch.zeros(recipe.batch_size, dtype=torch.int64, device=device)
    model.eval()
    try:
        model(x[:1])
    except RuntimeError as error:
        size = f"{benchmark.size}x{benchmark.size}"
        first = str(error).splitlines()[0]
        raise ValueError(f"net '{recipe.net}' cannot take images of {size} ({first}); choose another --net") from None
    state = [(part, n, b.clone()) for part in objective.modules() for n, b in part.named_buffers(recurse=False)]
    with torch.random.fork_rng(devices=[]):
        objective(model, x, y, epoch=0)
    for part, name, buffer in state:  # queues and averages do not remember it
        setattr(part, name, buffer)
    model.train()


def topology(recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Topology:
    """The topology for a run of so many steps."""
    kind = pick(TOPOLOGIES, recipe.topology, "topology")
    if not issubclass(kind, SparseTopology):
        return Dense(optimizer)
    return kind(
        model,
        optimizer,
        recipe.sparsity,
        schedule(recipe, steps) if kind.rewires else None,
        pick(ALLOCATIONS, recipe.allocation, "allocation"),
        seed=recipe.seed,
        pattern=_pattern(recipe.pattern),
    )


def training_batches(
    recipe: Recipe, benchmark: Benchmark, images: AnySet, device: torch.device | str, ranks: Ranks | None = None
) -> Batches | Streams:
    if isinstance(images, Listed):
        part = (0, 1) if ranks is None else (ranks.rank, ranks.count)
        return streams(images, benchmark, device, batch_size=recipe.batch_size, seed=recipe.seed, part=part)
    return Batches(
        images,
        benchmark.mean,
        benchmark.std,
        batch_size=recipe.batch_size,
        crop=benchmark.crop,
        flip=benchmark.flip,
        seed=recipe.seed,
        device=device,
    )


def training(
    recipe: Recipe,
    benchmark: Benchmark,
    train: AnySet,
    device: torch.device | str,
    outliers: AnySet | None = None,
    ranks: Ranks | None = None,
) -> Training:
    """Everything of a run, ready to start; of several processes each takes its part of every batch."""
    device = torch.device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # kernels and graphs go where the data are
    batches = training_batches(recipe, benchmark, train, device, ranks)
    model = network(recipe, benchmark, device)
    draw = None
    if outliers is not None:
        supply = training_batches(recipe, benchmark, outliers, device)
        assert isinstance(supply, Batches)  # outliers are in memory
        draw = supply.draw, int(outliers.labels.max()) + 1
    objective = loss(recipe, model, draw).to(device)
    _try_out(model, objective, recipe, benchmark)
    optimizer = torch.optim.SGD(
        chain(model.parameters(), objective.parameters()),
        lr=recipe.lr_start,
        momentum=recipe.momentum,
        nesterov=recipe.nesterov and recipe.momentum > 0,
        weight_decay=recipe.weight_decay,
    )
    return Training(
        model,
        optimizer,
        objective,
        topology(recipe, model, optimizer, recipe.epochs * len(batches)),
        rate(recipe),
        batches,
        epochs=recipe.epochs,
        vote_from=recipe.vote_from,
        vote_every=recipe.vote_every,
        precision=getattr(torch, recipe.precision),
        seed=recipe.seed,
        ranks=ranks,
    )


def detector(name: str, benchmark: Benchmark, **chosen: Any) -> Detector:
    """The detector with its defaults but for those chosen; ODIN's step is scaled as the benchmark's images are.

    `NAME:released` has the public code's rule for the K+1-th output.
    """
    key, _, variant = name.partition(":")
    kind = pick(DETECTORS, key, "detector")
    takes = inspect.signature(kind).parameters
    options: dict[str, Any] = {"std": benchmark.std} if "std" in takes else {}
    if variant:
        if variant != "released" or "released" not in takes:
            raise ValueError(f"detector '{key}' has no variant '{variant}'")
        options["released"] = True
    return kind(**options | chosen)
