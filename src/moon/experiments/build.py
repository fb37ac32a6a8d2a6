"""Names become objects here, and nowhere else."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from itertools import chain
from typing import Any

import torch
from torch import nn

from moon.chance import derive
from moon.data import Batches, Benchmark, DataSet
from moon.detect import DETECTORS, Detector
from moon.evidence import open_head
from moon.experiments.recipe import RATES, Recipe, Scalar
from moon.nets import NETS
from moon.objectives import OBJECTIVES, Objective
from moon.sparse import ALLOCATIONS, TOPOLOGIES, Dense, DropSchedule, SparseTopology, Topology
from moon.training import CosineRate, Training
from moon.words import nearest

NAMES = {
    "objective": tuple(OBJECTIVES),
    "topology": tuple(TOPOLOGIES),
    "allocation": tuple(ALLOCATIONS),
    "net": tuple(NETS),
    "rates": tuple(RATES),
    "detector": tuple(DETECTORS),
}


def pick(table: Mapping[str, Any], name: str, kind: str) -> Any:
    """The entry of a table, or a `ValueError` that names the nearest right word."""
    if name in table:
        return table[name]
    raise ValueError(f"unknown {kind} '{name}'{nearest(name, table)}; known: {', '.join(table)}")


# What belongs to a method besides its loss: (learning rates, share of epochs that vote).
_COMPANIONS = {"moon": ("moon", 0.2)}
# What the paper sets for one benchmark alone.
_PAPER_OPTIONS: dict[tuple[str, str], dict[str, Scalar]] = {
    ("moon", "mnist"): {"final": 0.01},
    ("moon", "cifar100"): {"final": 2.0},
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
    **rest: Any,
) -> Recipe:
    """A recipe with the benchmark's net and the objective's own settings where none are given.

    All names and values are checked here, so that nothing is refused after data were read or a folder made.
    """
    kind = pick(OBJECTIVES, objective, "objective")
    options = _PAPER_OPTIONS.get((objective, row.name), {}) | dict(options or {})
    own_rates, own_vote = _COMPANIONS.get(objective, ("plain", 0.0))
    start, end, hold = pick(RATES, own_rates if rates is None else rates, "learning rates")
    if topology == "dense":
        rest["sparsity"] = 0.0
    made = Recipe(
        benchmark=row.name,
        net=row.net if net is None else net,
        objective=objective,
        objective_options=tuple(_options(kind.for_run, options, objective).items()),
        topology=topology,
        lr_start=start if lr is None else lr,
        lr_end=end,
        lr_hold_share=hold,
        vote_share=own_vote if vote_share is None else vote_share,
        **rest,
    )
    pick(NETS, made.net, "net")
    pick(TOPOLOGIES, made.topology, "topology")
    pick(ALLOCATIONS, made.allocation, "allocation")({"any": (1, 1)}, made.sparsity)
    for make in (loss, rate, schedule):
        make(made)
    return made


def _options(function: Any, given: Mapping[str, Scalar], name: str) -> dict[str, Scalar]:
    """The options, checked by name against what the function takes and converted to its defaults' types."""
    allowed = {
        key: parameter.default
        for key, parameter in inspect.signature(function).parameters.items()
        if parameter.default is not parameter.empty
    }
    options: dict[str, Scalar] = {}
    for key, value in given.items():
        if key not in allowed:
            known = f"known: {', '.join(allowed)}" if allowed else "it has none"
            raise ValueError(f"'{name}' has no option '{key}'{nearest(key, allowed)}; {known}")
        kind = type(allowed[key])
        try:
            options[key] = kind(value)
        except ValueError:
            raise ValueError(f"option '{key}' of '{name}' must be a {kind.__name__}, not '{value}'") from None
    return options


def loss(recipe: Recipe) -> Objective:
    kind = pick(OBJECTIVES, recipe.objective, "objective")
    return kind.for_run(epochs=recipe.epochs, **dict(recipe.objective_options))


def rate(recipe: Recipe) -> CosineRate:
    return CosineRate(recipe.lr_start, recipe.lr_end, recipe.lr_hold_share)


def schedule(recipe: Recipe, steps: int = 1) -> DropSchedule:
    """The schedule of a run of so many steps."""
    return DropSchedule(int(recipe.t_end_share * steps), recipe.delta_t_steps, recipe.drop_fraction)


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
def _try_out(model: nn.Module, recipe: Recipe, benchmark: Benchmark) -> None:
    """Refuse a net that cannot take the benchmark's images."""
    device = next(model.parameters()).device
    try:
        model.eval()(torch.zeros(1, benchmark.channels, benchmark.size, benchmark.size, device=device))
    except RuntimeError as error:
        size = f"{benchmark.size}x{benchmark.size}"
        first = str(error).splitlines()[0]
        raise ValueError(f"net '{recipe.net}' cannot take images of {size} ({first}); choose another --net") from None
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
    )


def training_batches(recipe: Recipe, benchmark: Benchmark, train: DataSet, device: torch.device | str) -> Batches:
    return Batches(
        train,
        benchmark.mean,
        benchmark.std,
        batch_size=recipe.batch_size,
        crop=benchmark.crop,
        flip=benchmark.flip,
        seed=recipe.seed,
        device=device,
    )


def training(recipe: Recipe, benchmark: Benchmark, train: DataSet, device: torch.device | str) -> Training:
    """Everything of a run, ready to start."""
    batches = training_batches(recipe, benchmark, train, device)
    model = network(recipe, benchmark, device)
    _try_out(model, recipe, benchmark)
    objective = loss(recipe).to(device)
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
        precision=getattr(torch, recipe.precision),
        seed=recipe.seed,
    )


def detector(name: str, benchmark: Benchmark) -> Detector:
    """The detector with its defaults; ODIN's step is scaled as the benchmark's images are.

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
    return kind(**options)
