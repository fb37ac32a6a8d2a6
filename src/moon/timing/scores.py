"""Time scoring: the forward passes, and each detector."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from moon.data import Benchmark, DataSet, evaluation_batches
from moon.detect import Detector
from moon.evidence import Evidence, classifier_of, read
from moon.recipe import Recipe, build, make_recipe
from moon.run.images import BenchmarkImages
from moon.timing.limits import cost_or_none, machine_rates, seconds
from moon.timing.steps import Track, noise


def time_scores(
    benchmark: Benchmark,
    names: Iterable[str],
    *,
    device: torch.device,
    net: str | None = None,
    bank: int = 5000,
    queries: int = 5000,
    from_evidence: bool = False,
    sparsity: float = Recipe.sparsity,
    precision: str = "float32",
    track: Track = lambda items, _: items,
) -> dict[str, Any]:
    """Time the scoring of images with each detector alone, and with all of them sharing the forward passes.

    The time of a detector alone includes the forward passes over the queries and over the images that the detector is
    fitted on, fitting, and scoring. Together, each set is evaluated once. On a CPU the same network is also timed
    with dense products, on the validation images only, because that takes long.

    The masks are RigL's initial ones. Detectors that perturb inputs share no forward pass and are skipped. `bank` is
    the number of training images, `queries` that of the images to score; `from_evidence` means random features without
    forward passes, as with kept evidence.
    """
    recipe = make_recipe(benchmark, "moon", net=net, sparsity=sparsity)
    model = build.network(recipe, benchmark, device).eval()
    topology = build.topology(recipe, model, torch.optim.SGD(model.parameters()), steps=1000)
    data = {
        "queries": noise(benchmark, queries),
        "train": noise(benchmark, bank, 1),
        "validation": noise(benchmark, max(bank // 50, 20), 2),  # the ratio of CIFAR-10
    }
    images = BenchmarkImages(benchmark, {}, {}, ())

    names = list(names)
    layers = any(build.detector(name, recipe, benchmark).layered for name in names)

    def evaluate(part: DataSet) -> Evidence:
        if from_evidence:
            return _random_evidence(model, part, benchmark.num_known, device)
        return images.evidence(model, part, precision=precision, layers=layers)

    evidence, reading = _time_reading(evaluate, data, device, track)
    own, alone, left_out = _time_detectors(recipe, benchmark, names, evidence, reading, device, track)
    together = sum(reading.values()) + sum(own.values())
    slowest = max(alone, key=lambda name: alone[name])
    count = sum(len(part.labels) for part in data.values())
    dense = None
    if device.type == "cpu" and not from_evidence:
        batches = evaluation_batches(data["validation"], benchmark, device)
        dense = seconds(lambda: read(model, batches), device) * count / len(data["validation"].labels)
    densities = {name: float(mask.float().mean()) for name, mask in topology.masks.items()}
    cost = cost_or_none(model, benchmark.input_shape, densities)
    rate = machine_rates(device, torch.float32)[0]
    return {
        "read": not from_evidence,
        "sparsity": sparsity,
        "precision": precision,
        "dense_reading": dense,  # extrapolated from the validation images
        "limit": cost and count * cost.dense / rate,  # of the forward passes with dense products
        "limit_sparse": cost and count * cost.sparse / rate,  # with the non-zero weights only
        "queries": queries,
        "bank": bank,
        "left_out": left_out,
        "reading": reading,  # forward passes
        "own": own,
        "alone": alone,
        "together": together,
        "from_evidence": sum(own.values()),
        "slowest": slowest,
        "ratio": together / alone[slowest],
    }


def _time_reading(
    evaluate: Callable[[DataSet], Evidence], data: dict[str, DataSet], device: torch.device, track: Track
) -> tuple[dict[str, Evidence], dict[str, float]]:
    """The evidence of each set, and the seconds that it took."""
    evaluate(data["validation"])  # warm up
    evidence: dict[str, Evidence] = {}

    def put(key: str) -> None:
        evidence[key] = _predicting_labels(evaluate(data[key]), data[key])

    times = {key: seconds(lambda key=key: put(key), device) for key in track(list(data), "evaluating")}
    return evidence, times


def _time_detectors(
    recipe: Recipe,
    benchmark: Benchmark,
    names: Iterable[str],
    evidence: dict[str, Evidence],
    reading: dict[str, float],
    device: torch.device,
    track: Track,
) -> tuple[dict[str, float], dict[str, float], dict[str, str]]:
    """Seconds of fitting and scoring, the same plus the forward passes a detector needs, and what was left out."""
    own: dict[str, float] = {}
    alone: dict[str, float] = {}
    left_out: dict[str, str] = {}
    scores: dict[str, Tensor] = {}
    for name in track(list(names), "scoring"):
        detector = build.detector(name, recipe, benchmark)
        if detector.reading:
            continue
        splits = detector.fits_on_splits

        def act(given: dict[str, Tensor], detector: Detector = detector, splits: tuple[str, ...] = splits) -> Tensor:
            if splits:
                detector.fit(*(evidence[key] for key in splits))
            return detector.score_given(evidence["queries"], given)

        try:
            scores[name] = act(scores)  # warm up
        except ValueError as error:
            left_out[name] = str(error)
            continue
        own[name] = seconds(lambda act=act: act(scores), device)
        by_itself = seconds(lambda act=act: act({}), device) if detector.parts else own[name]
        alone[name] = by_itself + reading["queries"] + sum(reading[key] for key in splits)
    return own, alone, left_out


def _random_evidence(model: nn.Module, part: DataSet, num_known: int, device: torch.device) -> Evidence:
    head = classifier_of(model)
    labels = torch.as_tensor(part.labels, device=device)
    generator = torch.Generator(device).manual_seed(len(labels))
    features = torch.rand(len(labels), head.in_features, generator=generator, device=device)
    return Evidence(head(features).detach().double(), features, num_known, labels, (head.weight, head.bias))


def _predicting_labels(evidence: Evidence, part: DataSet) -> Evidence:
    """The evidence with correct predictions, which OpenMax needs and an untrained model does not make."""
    labels = torch.as_tensor(part.labels, device=evidence.logits.device)[:, None]
    bonus = torch.zeros_like(evidence.logits).scatter_(1, labels, 1.0)
    return replace(evidence, logits=evidence.logits + 10 * bonus)
