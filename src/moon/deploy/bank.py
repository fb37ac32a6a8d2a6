"""Detectors that keep features of training images, with less of them, so that a packed file stays small."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from moon.detect import Detector, Fisher, Knn, Layers, NnGuide, Scaled
from moon.detect.knn import k_among
from moon.detect.moments import long_directions
from moon.evidence import Evidence, chunks, taken
from moon.seeds import generator

# What a file keeps of the training features by default; docs/LOG.md has the measurements.
BANK, DIRECTIONS, LENGTH = 10_000, 64, 0.99


class CompactKnn(Detector):
    """KNN with some of the training images, and with features in the directions in which they are longest.

    The k-th of n neighbours is about the (k * bank / n)-th neighbour among those kept. With features z of length 1 the
    score -||z - z_(k)||^2 = 2 z . z_(k) - 2 needs products only, which the projections keep almost exactly.

    K+1 rule: only features are used, not the unknown output.

    Args:
        k: Which neighbour, among all training images, as for `Knn`.
        bank: How many images to keep at most; the same share of each class.
        directions: How many directions to keep at most; fewer if they contain 99% of the squared length.
    """

    fits_on = "train"

    def __init__(self, k: int | None = None, bank: int = BANK, directions: int = DIRECTIONS) -> None:
        if (k is not None and k < 1) or bank < 1 or directions < 1:
            raise ValueError(f"k={k}, bank={bank} and directions={directions} must be at least 1")
        self.k, self.bank, self.directions = k, bank, directions
        self.projection: Tensor | None = None  # (D, directions)
        self.kept: Tensor | None = None  # (bank, directions)
        self.rank = 1

    def fit(self, evidence: Evidence) -> Self:
        k = k_among(evidence, self.k)
        z = evidence.unit_features
        products: Any = sum((part.T @ part).double() for (part,) in chunks(z))
        projection = long_directions(products, LENGTH)[:, : self.directions].to(z)
        chosen = sample(evidence, self.bank)
        self.projection, self.kept = projection, taken(z, chosen) @ projection
        self.rank = max(1, round(k * len(chosen) / len(z)))
        return self

    def score(self, evidence: Evidence) -> Tensor:
        projection, kept = self._fitted("projection"), self._fitted("kept")
        similarity = normalize(evidence.features).to(kept) @ projection @ kept.T
        return 2 * similarity.topk(self.rank, sorted=True).values[:, -1] - 2


def reduced(detector: Detector, bank: int, images: int) -> Detector:
    """A detector that keeps features of at most `bank` of the training images, to be fitted on all of them.

    It is the detector itself if that keeps no features of single images.
    """
    if bank < 1:
        raise ValueError(f"features of at least one training image must be kept (bank), not {bank}")
    if isinstance(detector, Scaled):
        return Scaled(reduced(detector.inner, bank, images))
    if isinstance(detector, NnGuide):  # it keeps a share of the images anyway
        return NnGuide(detector.k, min(detector.share, bank / images, 1.0))
    if isinstance(detector, Knn):
        return CompactKnn(detector.k, bank)
    if isinstance(detector, (Fisher, Layers)):
        made = type(detector)(**detector.options())
        made.parts = {name: reduced(part, bank, images) for name, part in made.parts.items()}
        return made
    return detector


def features_kept(detector: Detector) -> int:
    """Of how many training images a fitted detector keeps features; for a combination, the most of a part."""
    inner: Any = detector.inner if isinstance(detector, Scaled) else detector
    if isinstance(inner, (Fisher, Layers)):
        return max(features_kept(part) for part in inner.parts.values())
    kept = inner.kept if isinstance(inner, CompactKnn) else getattr(inner, "bank", None)
    return 0 if kept is None else len(kept)


def sample(evidence: Evidence, count: int) -> Tensor:
    """Choose images at random, the same share of each class, and return their indices in increasing order.

    Without labels they are of one class.
    """
    device = evidence.features.device
    if count >= len(evidence):
        return torch.arange(len(evidence), device=device)
    order = torch.randperm(len(evidence), generator=generator("bank")).to(device)
    if evidence.labels is None:
        return order[:count].sort().values
    labels = evidence.labels[order]
    sizes = labels.bincount()
    by_class = labels.argsort(stable=True)
    place = torch.empty_like(labels)  # of an image among those of its class
    place[by_class] = torch.arange(len(labels), device=labels.device) - (sizes.cumsum(0) - sizes)[labels[by_class]]
    return order[(place / sizes[labels]).argsort(stable=True)[:count]].sort().values
