"""Section 4 of the MOON paper (Lei et al. 2024) in numbers: Definition 4.2 and Insights 4.4, 4.6 and 4.8.

The setting is two equally likely Gaussian classes in the plane: class c is N(mu_c, I). As in the proofs, h(x) = x, so
only the classifier g is learned. Expectations over classes are exact. docs/methods/theory.md discusses the results;
`moon.paper.theory_figure` draws them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import log, pi, sqrt
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from moon.metrics import auroc
from moon.objectives.moon import moon_loss
from moon.seeds import generator

MEANS = torch.tensor([[-1.5, 0.0], [1.5, 0.0]])
RADIUS = 0.25  # of the ball D(epsilon)
HARD = -0.5  # x_1 = (-0.5, 0) belongs to class 1, and 18% of the ball around it to class 2
SCALES = (0.1, 0.3, 1.0, 3.0)  # of the features, for Definition 4.2
WEIGHTS = (0.1, 0.5, 1.0, 2.0, 4.0, 10.0)  # w of the pointwise minimiser
TRAINED = (None, 1.0, 2.0, 10.0)  # None: cross-entropy over two outputs; else w: the paper's w_f for CIFAR, and 10
COUNTS = (100, 400, 2000)  # training samples
POSITIONS = [i / 8 for i in range(-16, 17)]  # centres of balls on the line between the means


def densities(x: Tensor) -> Tensor:
    """Return the density N(x; mu_c, I) of each class at points (points, 2), one column per class."""
    return torch.exp(-((x[:, None] - MEANS) ** 2).sum(2) / 2) / (2 * pi)


def ball(centre: float, points: int = 400) -> Tensor:
    """Return points (points, 2) that fill the ball of radius `RADIUS` around (centre, 0) evenly.

    The points lie on a spiral with steps of the golden angle.
    """
    i = torch.arange(points)
    radius, angle = RADIUS * ((i + 0.5) / points).sqrt(), i * pi * (3 - sqrt(5))
    return torch.stack([centre + radius * angle.cos(), radius * angle.sin()], 1)


def gap(confidence: Tensor, predicted: Tensor, mass: Tensor) -> Tensor:
    """Return confidence minus accuracy, E[confidence] - E[1{y^ = y}], the left side of Definition 4.2.

    A positive gap is over-confidence. Confidence and predicted class are (..., points), the probability mass of each
    class at each point is (points, 2).
    """
    correct = mass.expand(*predicted.shape, 2).gather(-1, predicted[..., None]).squeeze(-1)
    return (confidence * mass.sum(1) - correct).sum(-1) / mass.sum()


def density_gap(centre: float, scale: float) -> float:
    """Return the gap of Definition 4.2 as written, with the density max_c N(h(x); mu_c, Sigma_c) as confidence.

    The classifier is the best possible one. Multiplying the features by `scale` changes no prediction and divides the
    densities by scale^2.
    """
    mass = densities(ball(centre))
    largest, predicted = mass.max(1)
    return float(gap(largest / scale**2, predicted, mass))


def minimiser(q: float, w: float) -> NDArray:
    """Return the probabilities (p_1, p_2, p_3) that minimise the expected MOON loss where a share q is of class 1.

    For q >= 1/2:  L = -q log p_1 - (1 - q) a log p_2,  a = 1 + w / (1 + w p_3),  where p_1 is the largest.
    Given p_3, the best p_1 is (1 - p_3) max(1/2, q / (q + (1 - q) a)); p_3 is searched in steps of 1e-4.
    If p_3 were the largest, every sample would be wrong, which is never best (a test searches the whole simplex).
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
    """Return the w above which p_{K+1} > 0 is best where all K classes are equally likely.

    A share r = (K-1)/K of the samples is wrong there, with CE = log K. Raising p_{K+1} from 0 reduces the loss if
    r w^2 log K > 1 + r w.
    """
    r, ce = 1 - 1 / num_known, log(num_known)
    return (r + sqrt(r * r + 4 * r * ce)) / (2 * r * ce)


def samples(count: int, *keys: int) -> tuple[Tensor, Tensor]:
    """Draw features (count, 2) of both classes, equally many of each, and their classes; `keys` select the stream."""
    y = torch.arange(count) % 2
    return MEANS[y] + torch.randn(count, 2, generator=generator("theory samples", count, *keys)), y


def unknowns() -> dict[str, Tensor]:
    """Return unknown inputs: 1000 `between` the classes, and 1000 on a circle `far` from both."""
    rng = generator("theory unknowns")
    angle = 2 * pi * torch.rand(1000, generator=rng)
    between = 0.3 * torch.randn(1000, 2, generator=rng)
    return {"between": between, "far": 10 * torch.stack([angle.cos(), angle.sin()], 1)}


def train(w: float | None, count: int, seeds: int, steps: int) -> Callable[[Tensor], Tensor]:
    """Train one network per seed, all at once; w is None for cross-entropy without the extra output.

    Each has two hidden layers of 32 units and is trained on all of its samples at once with Adam, whose learning rate
    falls from 0.02 to 0 along a cosine. Networks with the same seed have the same samples and the same initial hidden
    weights for every w. The result maps points (points, 2) to probabilities (seeds, points, outputs).
    """
    drawn = [samples(count, seed) for seed in range(seeds)]
    x, y = torch.stack([x for x, _ in drawn]), torch.cat([y for _, y in drawn])
    rngs = [generator("theory weights", seed) for seed in range(seeds)]
    layers: list[tuple[Tensor, Tensor]] = []
    for fan_in, fan_out in pairwise((2, 32, 32, 2 if w is None else 3)):
        weight = torch.stack([torch.randn(fan_in, fan_out, generator=rng) for rng in rngs]) * sqrt(2 / fan_in)
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
        (seeds * loss).backward()  # a sum over networks: each has the gradient it would have alone
        optimizer.step()
        rates.step()
    return lambda x: logits(x.expand(seeds, -1, -1)).detach().softmax(2)


def observe(network: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    """Measure trained networks: gaps, mean confidence, mean p_{K+1} and AUROC of confidence, by region and seed."""
    known, y = samples(4000)
    mass = densities(known)
    mass = mass / mass.sum(1, keepdim=True)  # points are drawn from the mixture, so each has mass one
    hard = known[mass.argmax(1) != y]  # on the side of the other class
    p = {region: network(x) for region, x in {"known": known, "hard": hard, **unknowns()}.items()}
    confidence = {region: value[..., :2].amax(2) for region, value in p.items()}
    balls = {centre: network(ball(centre))[..., :2].max(2) for centre in POSITIONS}
    line = torch.stack([gap(*found, densities(ball(centre))) for centre, found in balls.items()], 1)
    return {
        "gap": {
            "everywhere": gap(*p["known"][..., :2].max(2), mass).tolist(),
            "between": line[:, [abs(centre) <= abs(HARD) for centre in POSITIONS]].mean(1).tolist(),
            "D_2": gap(*balls[HARD], densities(ball(HARD)) * torch.tensor([0.0, 1.0])).tolist(),
            "line": line.tolist(),
        },
        "confidence": {region: value.mean(1).tolist() for region, value in confidence.items()},
        "p_unknown": {region: value[..., 2:].sum(2).mean(1).tolist() for region, value in p.items()},
        "auroc": {
            region: [auroc(*scores) for scores in zip(confidence["known"], confidence[region], strict=True)]
            for region in ("between", "far")
        },
    }


def demonstrate(seeds: int = 5, steps: int = 300) -> dict[str, Any]:
    """Compute all numbers of the demonstration, ready for JSON; they are the same on every call.

    `definition` is Definition 4.2, `pointwise` the minimiser for each q in `shares`, `trained` the networks of each
    loss and number of samples, with gaps at `positions`.
    """
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
