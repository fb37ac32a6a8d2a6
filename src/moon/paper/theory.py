"""Section 4 (Lei et al. 2024) in numbers: Definition 4.2 and Insights 4.4, 4.6 and 4.8 on two Gaussian classes.

h(x) = x in the plane, so that only the classifier g is learned, as in the proofs; class c is N(mu_c, I), and both are
equally likely. All expectations over classes are exact. What was found is in docs/methods/theory.md.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from moon.metrics import auroc
from moon.objectives.moon import moon_loss
from moon.results.figures import COLOURS, panels, save
from moon.seeds import generator

MEANS = torch.tensor([[-1.5, 0.0], [1.5, 0.0]])
RADIUS = 0.25  # of the ball D(epsilon)
HARD = -0.5  # x_1 = (-0.5, 0) is of class 1, and 18% of the ball around it is of class 2
SCALES = (0.1, 0.3, 1.0, 3.0)  # of the features, for Definition 4.2
WEIGHTS = (0.1, 0.5, 1.0, 2.0, 4.0, 10.0)  # w of the pointwise minimiser
TRAINED = (None, 1.0, 2.0, 10.0)  # cross-entropy over two outputs; MOON with the paper's w_f for CIFAR and a large one
COUNTS = (100, 400, 2000)  # training samples
POSITIONS = [i / 8 for i in range(-16, 17)]  # centres of balls on the line between the means


def densities(x: Tensor) -> Tensor:
    """N(x; mu_c, I), a column a class."""
    return torch.exp(-((x[:, None] - MEANS) ** 2).sum(2) / 2) / (2 * pi)


def ball(centre: float, points: int = 400) -> Tensor:
    """Points that fill the ball around (centre, 0) evenly: a spiral with steps of the golden angle."""
    i = torch.arange(points)
    radius, angle = RADIUS * ((i + 0.5) / points).sqrt(), i * pi * (3 - sqrt(5))
    return torch.stack([centre + radius * angle.cos(), radius * angle.sin()], 1)


def gap(confidence: Tensor, predicted: Tensor, mass: Tensor) -> Tensor:
    """E[confidence] - E[1{y^ = y}] over points, the left side of Definition 4.2; positive is over-confident.

    `confidence` and `predicted` are (..., points); `mass` (points, 2) is how much of each class is at each point.
    """
    correct = mass.expand(*predicted.shape, 2).gather(-1, predicted[..., None]).squeeze(-1)
    return (confidence * mass.sum(1) - correct).sum(-1) / mass.sum()


def density_gap(centre: float, scale: float) -> float:
    """Definition 4.2 as written, its confidence a density max_c N(h(x); mu_c, Sigma_c), for the best classifier.

    Features times `scale` leave every prediction as it is, and divide the densities by scale^2.
    """
    mass = densities(ball(centre))
    largest, predicted = mass.max(1)
    return float(gap(largest / scale**2, predicted, mass))


def minimiser(q: float, w: float) -> NDArray:
    """(p_1, p_2, p_3) of the least expected MOON loss at a place where a share q of the samples is of class 1.

    For q >= 1/2:  L = -q log p_1 - (1 - q) a log p_2,  a = 1 + w / (1 + w p_3),  where p_1 is the largest
    Given p_3, the best p_1 is (1 - p_3) max(1/2, q / (q + (1 - q) a)), and p_3 is searched in steps of 1e-4.
    A p_3 that is the largest makes every sample wrong and is never best (the test searches the whole simplex).
    """
    if q < 0.5:
        return minimiser(1 - q, w)[[1, 0, 2]]
    p3 = np.linspace(0, 0.5, 5001)
    a = 1 + w / (1 + w * p3)
    p1 = (1 - p3) * np.maximum(0.5, q / (q + (1 - q) * a))
    p2 = 1 - p3 - p1
    loss = -q * np.log(p1) - ((1 - q) * a * np.log(p2) if q < 1 else 0)
    best = np.where(p1 >= p3, loss, np.inf).argmin()
    return np.array([p1[best], p2[best], p3[best]])


def least_weight(num_known: int) -> float:
    """The w above which p_{K+1} > 0 is best where all K classes are equally likely.

    A share r = (K-1)/K is wrong there, with CE = log K: to raise p_{K+1} from 0 pays if r w^2 log K > 1 + r w.
    """
    r, ce = 1 - 1 / num_known, log(num_known)
    return (r + sqrt(r * r + 4 * r * ce)) / (2 * r * ce)


def samples(count: int, *keys: int) -> tuple[Tensor, Tensor]:
    """As many features of each class, and their classes."""
    y = torch.arange(count) % 2
    return MEANS[y] + torch.randn(count, 2, generator=generator("theory samples", count, *keys)), y


def unknowns() -> dict[str, Tensor]:
    """Unknown inputs between the classes, and on a circle far from both."""
    chance = generator("theory unknowns")
    angle = 2 * pi * torch.rand(1000, generator=chance)
    between = 0.3 * torch.randn(1000, 2, generator=chance)
    return {"between": between, "far": 10 * torch.stack([angle.cos(), angle.sin()], 1)}


def train(w: float | None, count: int, seeds: int, steps: int) -> Callable[[Tensor], Tensor]:
    """A network a seed, all trained at once: x -> probabilities (seeds, points, outputs).

    Two hidden layers of 32, Adam on all samples at once, rate 0.02 falling to 0 by a cosine. With one seed, every
    w has the same samples and starts from the same hidden weights.
    """
    drawn = [samples(count, seed) for seed in range(seeds)]
    x, y = torch.stack([x for x, _ in drawn]), torch.cat([y for _, y in drawn])
    chances = [generator("theory weights", seed) for seed in range(seeds)]
    layers: list[tuple[Tensor, Tensor]] = []
    for fan_in, fan_out in pairwise((2, 32, 32, 2 if w is None else 3)):
        weight = torch.stack([torch.randn(fan_in, fan_out, generator=chance) for chance in chances]) * sqrt(2 / fan_in)
        layers.append((weight.requires_grad_(), torch.zeros(seeds, 1, fan_out, requires_grad=True)))

    def logits(x: Tensor) -> Tensor:
        for weight, bias in layers[:-1]:
            x = torch.baddbmm(bias, x, weight).relu()
        weight, bias = layers[-1]
        return torch.baddbmm(bias, x, weight)

    optimizer = torch.optim.Adam([tensor for layer in layers for tensor in layer], 0.02, fused=True)
    rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        z = logits(x).flatten(0, 1)
        loss = cross_entropy(z, y) if w is None else moon_loss(z, y, w)
        (seeds * loss).backward()  # a sum over networks, so that none feels how many others there are
        optimizer.step()
        rates.step()
    return lambda x: logits(x.expand(seeds, -1, -1)).detach().softmax(2)


def observe(network: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Gaps, confidence, p_{K+1} and AUROC by confidence of trained networks, a value a seed."""
    known, y = samples(4000)
    mass = densities(known)
    mass = mass / mass.sum(1, keepdim=True)  # the points are drawn from the mixture, so each counts as one
    hard = known[mass.argmax(1) != y]  # on the side of the other class
    p = {place: network(x) for place, x in {"known": known, "hard": hard, **unknowns()}.items()}
    confidence = {place: value[..., :2].amax(2) for place, value in p.items()}
    balls = {centre: network(ball(centre))[..., :2].max(2) for centre in POSITIONS}
    line = torch.stack([gap(*seen, densities(ball(centre))) for centre, seen in balls.items()], 1)
    return {
        "gap": {
            "everywhere": gap(*p["known"][..., :2].max(2), mass).tolist(),
            "between": line[:, [abs(centre) <= abs(HARD) for centre in POSITIONS]].mean(1).tolist(),
            "D_2": gap(*balls[HARD], densities(ball(HARD)) * torch.tensor([0.0, 1.0])).tolist(),
            "line": line.tolist(),
        },
        "confidence": {place: value.mean(1).tolist() for place, value in confidence.items()},
        "p_unknown": {place: value[..., 2:].sum(2).mean(1).tolist() for place, value in p.items()},
        "auroc": {
            place: [auroc(*scores) for scores in zip(confidence["known"], confidence[place], strict=True)]
            for place in ("between", "far")
        },
    }


def demonstrate(seeds: int = 5, steps: int = 300) -> dict[str, Any]:
    """All the numbers, ready for JSON; the same on every call."""
    shares = [i / 200 for i in range(100, 201)]
    best = {w: np.array([minimiser(q, w) for q in shares]) for w in WEIGHTS}
    return {
        "definition": [
            {"scale": scale, "mean": density_gap(-1.5, scale), "hard": density_gap(HARD, scale)} for scale in SCALES
        ],
        "shares": shares,
        "pointwise": [{"w": w, "confidence": p[:, 0].tolist(), "p_unknown": p[:, 2].tolist()} for w, p in best.items()],
        "least_weight": [{"num_known": k, "w": least_weight(k)} for k in (2, 10, 100, 1000)],
        "positions": POSITIONS,
        "trained": [{"w": w, "count": n, **observe(train(w, n, seeds, steps))} for n in COUNTS for w in TRAINED],
    }


def draw(result: dict[str, Any], path: Path) -> None:
    """The classes; the gap on the line between them; p_3 of the pointwise minimiser; confidence by place."""
    figure, axes = panels(2, 2, 4.8, 3.6)
    mixture, line, pointwise, places = axes.flat
    few, some, many = COUNTS
    names = {"known": "known", "hard": "known, on the\nwrong side"}
    names |= {"between": "unknown,\nbetween", "far": "unknown,\nfar"}
    colours = {None: COLOURS[0], 2.0: COLOURS[2], 4.0: COLOURS[4], 10.0: COLOURS[3]}

    x, y = samples(some, 0)
    for label, (marker, colour) in enumerate(zip("o^", (COLOURS[5], COLOURS[1]), strict=True)):
        mixture.scatter(*x[y == label].T, s=10, marker=marker, color=colour, alpha=0.7, label=f"class {label + 1}")
    mixture.scatter(*unknowns()["between"][:60].T, s=12, marker="x", lw=0.8, color="black", label="unknown, between")
    angle = np.linspace(0, 2 * np.pi)
    edge = HARD + RADIUS * np.cos(angle), RADIUS * np.sin(angle)
    mixture.plot(*edge, color=COLOURS[0], lw=2, label=f"ball around $x_1$, radius {RADIUS:g}")
    mixture.set(title="The features; far unknowns are 10 from the middle", aspect="equal", ylim=(-3.6, 5.6))
    mixture.set(xlabel="feature 1, standard deviations", ylabel="feature 2, standard deviations")
    mixture.legend(loc="upper center", ncols=2, frameon=False)

    shown = [run for run in result["trained"] if run["count"] != some and run["w"] in colours]
    for offset, run in enumerate(shown, -len(shown) // 2):
        name = "cross-entropy" if run["w"] is None else f"MOON, w = {run['w']:g}"
        style = {"color": colours[run["w"]], "label": f"{name}, {run['count']} samples"}
        gaps = np.array(run["gap"]["line"])
        free = int(len(gaps) > 1)  # of one seed there is no deviation
        low, high = gaps.mean(0) - gaps.std(0, ddof=free), gaps.mean(0) + gaps.std(0, ddof=free)
        line.plot(result["positions"], gaps.mean(0), "-" if run["count"] == many else "--", **style)
        line.fill_between(result["positions"], low, high, color=style["color"], alpha=0.1, lw=0)
        confidence = np.array([run["confidence"][place] for place in names])
        where, spread = np.arange(len(confidence)) + 0.12 * (offset + 0.5), confidence.std(1, ddof=free)
        fill = "full" if run["count"] == many else "none"
        places.errorbar(where, confidence.mean(1), spread, fmt="o", fillstyle=fill, capsize=2, **style)
    line.axhline(0, color="black", lw=0.8)
    line.set(title="The gap in a ball on the line between the means", ylim=(-0.5, 0.9))
    line.set(xlabel="centre of the ball, feature 1", ylabel="confidence - accuracy")
    line.legend(loc="upper center", ncols=2, frameon=False, fontsize=8)
    places.set(title="Confidence by place, and its deviation over seeds", ylim=(0.3, 1.05))
    places.set(ylabel="mean confidence", xlabel=f"colours as above; hollow: {few} samples, full: {many}")
    places.set_xticks(range(len(names)), names.values())

    zero = [f"{curve['w']:g}" for curve in result["pointwise"] if not any(curve["p_unknown"])]
    pointwise.plot(result["shares"], [0.0] * len(result["shares"]), color="black", label=f"w = {', '.join(zero)}")
    for curve in result["pointwise"]:
        if any(curve["p_unknown"]):
            pointwise.plot(result["shares"], curve["p_unknown"], color=colours[curve["w"]], label=f"w = {curve['w']:g}")
    pointwise.set(title=f"The best $p_3$ is 0 everywhere up to w = {result['least_weight'][0]['w']:.2f}")
    pointwise.set(xlabel="share q of the samples that are of class 1", ylabel="$p_3$ of the pointwise minimiser")
    pointwise.legend(frameon=False)
    save(figure, path)
