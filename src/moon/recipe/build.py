"""Build objects from a recipe: the network, the objective, the topology, the learning rate, the training."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import nn

from moon.data import AnySet, Batches, Benchmark, training_batches
from moon.detect import Detector
from moon.evidence import OpenHead, classifier_of, open_head, rotation_head
from moon.fast import SGD, kernel_search
from moon.objectives import Objective, Teacher
from moon.objectives.base import Draw
from moon.recipe.pretrained import load_pretrained, read_weights, weights_digest
from moon.recipe.recipe import Recipe
from moon.recipe.registry import arguments_of, pick, table
from moon.recipe.teachers import read_teachers
from moon.recipe.variants import FITTED, Variant, temperature_from
from moon.seeds import derive
from moon.sparse import DropSchedule, SparseTopology, TicketSchedule, Topology
from moon.suggest import first_line
from moon.training import CosineRate, Training
from moon.training.ranks import Ranks

_log = logging.getLogger(__name__)

# A weight that grows starts with moments of zero, for which AdamW corrects only in the first steps of a run. For a
# constant gradient its first updates are too long, with 0.99 up to 2.1 times, with the usual 0.999 up to 6.5 times.
_BETA2 = 0.99

# In place of outliers, for an objective that is built but not trained with.
PLACEHOLDER: tuple[Draw, int] = (lambda count: (torch.empty(count), torch.empty(count)), 1)


def network(recipe: Recipe, benchmark: Benchmark, device: torch.device | str) -> nn.Module:
    """The network with the outputs and heads that the objective needs; weights depend on the seed only."""
    make = pick("net", recipe.net)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("weights", recipe.seed))
        try:
            model = make(num_classes=benchmark.num_known, in_channels=benchmark.channels, **_width(recipe, make))
        except TypeError as error:
            also = "" if recipe.width == 1 else f", and width={recipe.width:g}"
            raise ValueError(
                f"net '{recipe.net}' cannot be made ({error}); it must accept num_classes and in_channels{also}"
            ) from error
        _check_outputs(recipe, model, benchmark.num_known)
        kind = pick("objective", recipe.objective)
        if kind.extra_logits:
            model = open_head(model)
        if kind.rotates:
            if benchmark.input_shape[1] != benchmark.input_shape[2]:
                raise ValueError(
                    f"objective '{recipe.objective}' rotates images, which must be square, not "
                    f"{'x'.join(map(str, benchmark.input_shape[1:]))}; use another, or import square images (--size)"
                )
            model = rotation_head(model)
    return model.to(device).to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def _width(recipe: Recipe, make: Any) -> dict[str, float]:
    """The argument `width` of a net, where it is not 1; raises a ValueError if the net has no such argument."""
    if recipe.width == 1:
        return {}
    if "width" not in arguments_of(make):
        ours = ", ".join(name for name, net in table("net").items() if "width" in arguments_of(net))
        raise ValueError(
            f"net '{recipe.net}' has no argument width, so width={recipe.width:g} cannot be used; use {ours} or a "
            "function of your own that has it"
        )
    return {"width": int(recipe.width) if recipe.width.is_integer() else recipe.width}


def _check_outputs(recipe: Recipe, model: Any, num_known: int) -> None:
    """Raise a ValueError if a net of the user is not a network for this number of classes."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"net '{recipe.net}' made a {type(model).__name__}; it must return a torch.nn.Module")
    head = classifier_of(model)
    if head.out_features != num_known:
        raise ValueError(
            f"net '{recipe.net}' has {head.out_features} outputs, but there are {num_known} known classes; its "
            "function must use its argument num_classes"
        )


def objective(
    recipe: Recipe, model: nn.Module, outliers: tuple[Draw, int] | None = None, teachers: Sequence[nn.Module] = ()
) -> Objective:
    """The objective for this model.

    Args:
        recipe: The run.
        model: The network; its classifier determines the numbers of classes and features.
        outliers: For objectives that train with outliers: a function that draws them, and their number of classes.
        teachers: For objectives that learn from other networks: these networks.
    """
    facts: dict[str, Any] = {"epochs": recipe.epochs, "teachers": teachers}
    if outliers is not None:
        facts |= {"outliers": outliers[0], "outlier_classes": outliers[1]}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive("objective", recipe.seed))
        return make_objective(recipe.objective, model, facts, dict(recipe.objective_options))


def make_objective(name: str, model: nn.Module, facts: dict[str, Any], options: dict[str, Any]) -> Objective:
    """The objective of this name with these options, and those facts of the run and of the model that it takes."""
    kind, head = pick("objective", name), classifier_of(model)
    num_known = head.out_features - isinstance(head, OpenHead)
    facts = facts | {"num_known": num_known, "num_features": head.in_features}
    return kind.for_run(**{key: facts[key] for key in kind.takes() if key in facts} | options)


def teachers(recipe: Recipe, benchmark: Benchmark, device: torch.device | str) -> list[Teacher]:
    """The trained networks that a run learns from, each with the normalisation of its own objective."""
    found, precision = [], getattr(torch, recipe.precision)
    for theirs, weights in read_teachers(recipe, benchmark):
        model = network(theirs, benchmark, device)
        model.load_state_dict(weights)
        found.append(Teacher(model.eval(), objective(theirs, model, PLACEHOLDER, [nn.Identity()]), precision))
    return found


def rate(recipe: Recipe) -> CosineRate:
    """The learning rate over the run."""
    cycles = recipe.lr_cycles, recipe.lr_peak
    return CosineRate(recipe.lr_start, recipe.lr_end, recipe.lr_hold_share, *cycles, recipe.warmup / recipe.epochs)


def schedule(recipe: Recipe, steps: int) -> DropSchedule:
    """When a run of `steps` steps rewires."""
    t_end, rest = int(recipe.t_end_share * steps), (recipe.delta_t_steps, recipe.drop_fraction)
    if not pick("topology", recipe.topology).superposes:
        return DropSchedule(t_end, *rest)
    if not recipe.lr_cycles:
        raise ValueError(f"topology '{recipe.topology}' needs learning rates with cycles, such as rates='tickets'")
    cycle = recipe.vote_every * steps // recipe.epochs
    first = steps - recipe.lr_cycles * cycle
    return TicketSchedule(min(t_end, first), *rest, first=first, cycle=cycle, tickets=recipe.lr_cycles)


def topology(recipe: Recipe, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> Topology:
    """The topology, with its masks, for a run of `steps` steps."""
    kind, options = pick("topology", recipe.topology), dict[str, Any](recipe.topology_options)
    if not issubclass(kind, SparseTopology):
        return kind(optimizer, **options)
    if recipe.first_mask != "random":  # a topology of another package need not know the argument
        options["first_mask"] = recipe.first_mask
    return kind(
        model,
        optimizer,
        recipe.sparsity,
        schedule(recipe, steps) if kind.rewires else None,
        pick("allocation", recipe.allocation),
        seed=recipe.seed,
        pattern=pick("pattern", recipe.pattern),
        **options,
    )


def optimizer(recipe: Recipe, model: nn.Module, objective: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the parameters of a model and its objective.

    If the backbone has a rate of its own, its parameters are a group with an `lr_factor`, which `Training` applies.
    """
    groups: Any = chain(model.parameters(), objective.parameters())
    if recipe.backbone_lr_factor != 1:
        head = list(classifier_of(model).parameters())
        backbone = [p for p in model.parameters() if all(p is not other for other in head)]
        groups = [
            {"params": [*head, *objective.parameters()], "lr_factor": 1.0},
            {"params": backbone, "lr_factor": recipe.backbone_lr_factor},
        ]
    settings: dict[str, Any] = {"lr": recipe.lr_start, "weight_decay": recipe.weight_decay}
    if recipe.optimizer == "adamw":
        return torch.optim.AdamW(groups, betas=(recipe.momentum, _BETA2), **settings)
    nesterov = recipe.nesterov and recipe.momentum > 0
    return SGD(groups, momentum=recipe.momentum, nesterov=nesterov, **settings)


def training(
    recipe: Recipe,
    benchmark: Benchmark,
    train: AnySet,
    device: torch.device | str,
    outliers: AnySet | None = None,
    ranks: Ranks | None = None,
) -> Training:
    """The `Training` of a run, ready to start.

    Args:
        recipe: The run.
        benchmark: How its images are prepared.
        train: The training images.
        device: Where to train.
        outliers: Unknown images to train with, for objectives that need some.
        ranks: This process among several that train as one; each takes its part of every batch.
    """
    device = torch.device(device)
    if device.type == "cuda" and device.index is not None:
        torch.cuda.set_device(device)  # Triton launches on the current device
    batching: dict[str, Any] = {"batch_size": recipe.batch_size, "seed": recipe.seed, "augment": recipe.augment}
    part = (0, 1) if ranks is None else (ranks.rank, ranks.count)
    batches = training_batches(train, benchmark, device, part=part, **batching)
    model = network(recipe, benchmark, device)
    if recipe.pretrained:
        for reason in _start_from_weights(recipe, model):
            _log.info("%s; a new one is trained", reason)
        if recipe.first_mask == "magnitude":
            _log.info("the first masks keep the weights of largest magnitude (first_mask=random keeps random ones)")
    draw = None
    if outliers is not None:
        supply = training_batches(outliers, benchmark, device, **batching)
        assert isinstance(supply, Batches)  # outliers are in memory
        draw = supply.draw, int(outliers.labels.max()) + 1
    loss = objective(recipe, model, draw, teachers(recipe, benchmark, device)).to(device)
    with kernel_search(False):  # kernels for one call are not worth a search
        _try_out(model, loss, recipe, benchmark, min(recipe.batch_size, len(train.labels)))
    updates = optimizer(recipe, model, loss)
    return Training(
        model,
        updates,
        loss,
        topology(recipe, model, updates, recipe.epochs * len(batches)),
        rate(recipe),
        batches,
        epochs=recipe.epochs,
        vote_from=recipe.vote_from,
        vote_every=recipe.vote_every,
        precision=getattr(torch, recipe.precision),
        seed=recipe.seed,
        ranks=ranks,
    )


def _start_from_weights(recipe: Recipe, model: nn.Module) -> list[str]:
    """Load the weights that the recipe names; raises a ValueError if the file is another one by now."""
    path = Path(recipe.pretrained)
    if (found := weights_digest(path)) != recipe.pretrained_sha256:
        raise ValueError(
            f"{path}: is not the file that the run was started with (its SHA-256 is {found[:12]}..., that of the "
            f"recipe {recipe.pretrained_sha256[:12]}...); restore it, or start a new run"
        )
    return load_pretrained(model, read_weights(path, recipe.net), recipe.pretrained, recipe.net)


@torch.no_grad()
def _try_out(model: nn.Module, objective: Objective, recipe: Recipe, benchmark: Benchmark, batch: int) -> None:
    """Raise a ValueError if the network does not accept the images, or the objective the network or the batch."""
    device = next(model.parameters()).device
    x = torch.zeros(batch, *benchmark.input_shape, device=device)
    y = torch.zeros(batch, dtype=torch.int64, device=device)
    model.eval()
    try:
        model(x[:1])
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        size = "x".join(map(str, benchmark.input_shape[1:]))
        reason = first_line(error)
        raise ValueError(f"net '{recipe.net}' does not accept images of {size} ({reason}); use another net") from None
    state = [(part, n, b.clone()) for part in objective.modules() for n, b in part.named_buffers(recurse=False)]
    with torch.random.fork_rng(devices=[]):
        objective(model, x, y, epoch=0)
    for part, name, buffer in state:  # undo what the trial changed in queues and averages
        setattr(part, name, buffer)
    model.train()


def detector(name: str, recipe: Recipe, benchmark: Benchmark, **options: Any) -> Detector:
    """The detector of this name for a run.

    A detector that depends on the scale of the logits is applied to logits / T. Without a suffix T is fitted on
    validation images if the objective normalises logits, and 1 otherwise. This is the only place that applies the rule.

    Args:
        name: The name; `NAME:released` for the public code's handling of the K+1-th output, `NAME:scaled` for the
            fitted T, `NAME:unscaled` for T = 1, `knn:k=5` for an option, `fisher:msp+knn` for the combination of
            these two.
        recipe: The run.
        benchmark: Its standard deviations scale ODIN's perturbation.
        **options: Options in place of the detector's defaults.

    Raises:
        ValueError: If there is no such detector, or the detector has no such variant.
    """
    variant = Variant.of(name)
    if "std" in inspect.signature(pick("detector", variant.key)).parameters:
        options = {"std": benchmark.std} | options
    return variant.make(temperature_from(name, recipe.objective) == FITTED, **options)
