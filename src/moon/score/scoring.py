"""The scores of one network, detector by detector: choosing, tuning and fitting detectors, and scoring sets."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moon.data import AnySet
from moon.data.classes import enumerated
from moon.detect import Detector, Knn
from moon.detect.knn import usual_k
from moon.evidence import Evidence
from moon.evidence.layers import has_convolutions
from moon.recipe import Recipe, build
from moon.recipe.variants import Variant
from moon.run.images import BenchmarkImages
from moon.score.auto import AUTO, Choice, Track, choice_of, choose_by_rule, halves, rank
from moon.score.cache import TRAINING, EvidenceCache
from moon.score.files import Scores, scored_sets
from moon.score.tune import tune
from moon.suggest import counted

_log = logging.getLogger(__name__)


@dataclass
class Scoring:
    """The scores of one run, detector by detector."""

    recipe: Recipe
    images: BenchmarkImages
    model: nn.Module
    cache: EvidenceCache
    must_fit: bool  # otherwise detectors that cannot be used are left out
    is_run: bool = True  # otherwise it is not known how the network was trained
    scores: Scores = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    searches: dict[str, Any] = field(default_factory=dict)
    choice: Choice = field(default_factory=dict)
    _used: dict[str, Detector] = field(default_factory=dict)

    @property
    def sets(self) -> dict[str, AnySet]:
        """What is scored: the known test set and the unknown sets."""
        return scored_sets(self.images)

    @property
    def halves(self) -> tuple[Tensor, Tensor]:
        """The validation images that detectors are chosen and tuned on, and those that are left for a threshold."""
        count = len(self.images.splits["val"].labels)
        if count < 2:
            raise ValueError(f"detectors are chosen and tuned on one half of the validation images, found {count}")
        return halves(count)

    def choose(self, track: Track) -> None:
        """Choose the detector of `auto`."""
        images, recipe = self.images, self.recipe
        if not images.tuning:
            objective = recipe.objective if self.is_run else None
            count = len(images.splits["train"].labels) if has_convolutions(self.model) else None
            self.choice = choose_by_rule(objective, images.benchmark.num_known, count)
            return
        known, unknown = images.splits["val"], images.tuning
        chosen_on, left = self.halves
        training = partial(self.cache.get, TRAINING, images.splits["train"])
        found = rank(recipe, images.benchmark, known, unknown, self._evidence, training, track, chosen_on)
        self.choice = choice_of(found, unknown, len(chosen_on), len(left))

    def run(self, detectors: dict[str, Detector | None], track: Track) -> None:
        for name in track(list(self.sets), "evaluating"):
            self.cache.get(name, self.sets[name])
        names = dict.fromkeys(self.choice["detector"] if name == AUTO else name for name in detectors)
        for name in track(list(names), "scoring"):
            try:
                given = detectors.get(name) or build.detector(name, self.recipe, self.images.benchmark)
                detector = self._prepared(name, given)
                self.scores[name], self._used[name] = self._scores(name, detector), detector
                if name in self.searches and name == self.choice.get("detector"):
                    self.choice["options"] = self.searches[name]["chosen"]
            except ValueError as error:
                if self.must_fit and name not in detectors:
                    raise ValueError(f"auto chose {name}, which cannot be used: {error}; name another one") from error
                if self.must_fit:
                    raise
                self.left_out[name] = str(error)
            else:
                _check_finite(name, self.scores[name])
        untuned = {name: detector for name, detector in self._used.items() if name not in self.searches}
        warn_of_small_classes(untuned, self.images.splits["train"].labels)

    def _prepared(self, name: str, detector: Detector) -> Detector:
        """The fitted detector; its options are tuned if there are tuning sets and its name does not give any."""
        if not (self.images.tuning and detector.grid) or Variant.of(name).options:
            return self._fitted(detector)
        among, left = self.halves
        fitted = partial(self._fitted, among=among)
        detector, record = tune(name, self.recipe, self.images, fitted, self._evidence, among)
        self.searches[name] = record | {"left": len(left)}
        return self._fitted(detector)

    def _fitted(self, detector: Detector, among: Tensor | None = None) -> Detector:
        """The detector, fitted on training images and on all validation images, or on some of them."""
        if detector.fits_on_splits:
            detector.fit(*(self._known(detector, split, among) for split in detector.fits_on_splits))
        return detector

    def _known(self, detector: Detector, split: str, among: Tensor | None) -> Evidence:
        """What a detector is fitted on; a combination scores the validation images with its parts."""
        name = {"train": "train", "validation": "val"}[split]
        data = self.images.splits[name]
        key = f"fit/{name}"  # cannot be the name of a set
        if name == "train":
            return self.cache.get(key, data)
        evidence = self._evidence(detector, key, data) if detector.parts else self.cache.get(key, data)
        return evidence if among is None else evidence.take(among)

    def _evidence(self, detector: Detector, name: str, data: AnySet) -> Evidence:
        if detector.reading:  # needs forward passes of its own
            how = {"precision": self.cache.precision, "mirrored": self.cache.mirrored}
            return self.images.evidence(self.model, data, **detector.reading, **how)
        return self.cache.get(name, data)

    def _scores(self, name: str, detector: Detector) -> dict[str, NDArray]:
        """Scores of each set; existing scores of a detector's parts are reused."""
        done = [key for key, part in detector.parts.items() if _is_same(part, self._used.get(key))]
        is_ordinary = bool(done) and not any(part.reading for key, part in detector.parts.items() if key not in done)
        found = {}
        for key, data in self.sets.items():
            evidence = self.cache.get(key, data) if is_ordinary else self._evidence(detector, key, data)
            given = {part: torch.as_tensor(self.scores[part][key], device=evidence.logits.device) for part in done}
            scores = detector.score_given(evidence, given)
            _check_scores(name, scores, len(evidence.logits))
            scores = scores.detach().cpu()
            found[key] = (scores.float() if scores.dtype is torch.bfloat16 else scores).numpy()  # NumPy has no bfloat16
        return found


def warn_of_small_classes(detectors: Mapping[str, Detector], labels: NDArray) -> None:
    """Warn if a class has fewer training images than KNN looks for, alone or in a combination.

    Args:
        detectors: The detectors by name.
        labels: The labels of the training images.
    """
    parts = {name: each.parts.get("knn", each) for name, each in detectors.items()}
    searched = {name: part.k or usual_k(len(labels)) for name, part in parts.items() if isinstance(part, Knn)}
    if not (searched and len(labels)):
        return
    classes, counts = np.unique(labels, return_counts=True)
    smallest, count = classes[counts.argmin()], int(counts.min())
    if few := [name for name, k in searched.items() if k > count]:
        _log.warning(
            "%s: class %d has %s, fewer than k, so some of the k nearest ones to its images are of other classes, and "
            "these images may look unknown; name a smaller number, such as k=%d",
            enumerated(few), smallest, counted(count, "training image"), min(count, usual_k(len(labels)))
        )  # fmt: skip


def _check_scores(name: str, scores: Any, images: int) -> None:
    """Raise a ValueError if a detector did not return one number per image."""
    if not isinstance(scores, torch.Tensor):
        raise ValueError(f"the score of {name} must be a tensor, not a {type(scores).__name__}")
    if scores.is_complex():
        raise ValueError(f"the score of {name} must be real numbers, not {scores.dtype}")
    if scores.shape != (images,):
        raise ValueError(f"the score of {name} must be of shape (N,) = ({images},), not {tuple(scores.shape)}")


def _is_same(part: Detector, other: Detector | None) -> bool:
    """Whether a detector was used that scores as a part does."""
    return type(part) is type(other) and other is not None and part.options() == other.options()


def _check_finite(name: str, scores: dict[str, NDArray]) -> None:
    """Raise a ValueError if a score is NaN or infinite; metrics would not say which detector it is."""
    for key, values in scores.items():
        if wrong := int((~np.isfinite(values)).sum()):
            raise ValueError(f"{name}: {wrong} of {len(values)} scores of {key} are NaN or infinite")
