"""`auto`: one detector for each network, chosen on unknown images that are not scored, or else by a rule.

The rule depends only on what is known of the network. `results/tables_auto.py` measures on kept runs how far its
choices are from the best detector; the tables are in docs/results/evaluation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moon.data import AnySet, Benchmark
from moon.data.benchmarks import FEW
from moon.detect import Detector
from moon.evidence import Evidence
from moon.metrics import auroc
from moon.recipe import Recipe, build, table
from moon.recipe.variants import LOSS, Variant, detector_name, normalises_logits, temperature_from
from moon.seeds import generator
from moon.suggest import did_you_mean

AUTO = "auto"
ALONE = ("all", "none")  # other values of --detector that are not detectors
FEW_CLASSES = 10  # with 100, the only other number among kept networks, Fisher was ahead of KNN on all but one

Track = Callable[[list[str], str], Iterable[str]]  # wraps a list of names, with a description, for a progress bar
Choice = dict[str, Any]  # what scores.json records
Found = dict[str, dict[str, Any]]  # detector -> set -> AUROC, or {"refused": reason}


def check_names(names: Iterable[str]) -> list[str]:
    """The names of detectors as they are listed, each once; a ValueError unless every one is `auto` or a detector."""
    names, entries = list(dict.fromkeys(map(detector_name, names))), table("detector")
    for name in names:
        key, colon, variant = name.partition(":")
        if name in ALONE and len(names) > 1:
            raise ValueError(f"'{name}' cannot be combined with other detectors")
        if key == AUTO and colon:
            raise ValueError(f"auto chooses a detector by itself and has no variant '{variant}'")
        if key != AUTO and key not in entries:
            suggested = did_you_mean(key.lower(), [AUTO, *entries])
            raise ValueError(f"unknown detector '{key}'{suggested}; choose from: {', '.join(entries)}, {AUTO}")
        if key != AUTO:
            Variant.of(name).make(False)  # raises for an option out of its range
    return names


def halves(images: int) -> tuple[Tensor, Tensor]:
    """Divide validation images into those that a choice, or a fit, may use and those that are left for a threshold.

    Their numbers are in order. The second half is the larger one: of 5 images, 2 and 3.
    """
    order = torch.randperm(images, generator=generator("calibration"))
    return order[: images // 2].sort().values, order[images // 2 :].sort().values


def choose_by_rule(objective: str | None, num_known: int, images: int | None = None) -> Choice:
    """Choose a detector by what is known of a network, and say why.

    Layers with few training images; Fisher for networks whose logits or features are normalised in training, or that
    know more than 10 classes; KNN for all others. The objective, and the number of training images, is None if it is
    not known.
    """
    if images is not None and images <= FEW:
        return {"detector": "layers", "why": f"by the rule for networks with at most {FEW:,} training images"}
    if objective and normalises_logits(objective):
        name, kind = "fisher", "trained with normalised logits or features"
    elif num_known > FEW_CLASSES:
        name, kind = "fisher", f"with more than {FEW_CLASSES} known classes"
    else:
        name, kind = "knn", f"with at most {FEW_CLASSES} known classes, trained without normalised logits or features"
    note = ""
    if objective is None and num_known <= FEW_CLASSES:  # with more, the rule does not need to know it
        unknown = "whether its logits or features were normalised in training"
        note = f"; a checkpoint does not say {unknown}, which is taken as no"
    return {"detector": name, "why": f"by the rule for networks {kind}{note}"}


def rank(
    recipe: Recipe,
    benchmark: Benchmark,
    validation: AnySet,
    unknown: Mapping[str, AnySet],
    evidence: Callable[[Detector, str, AnySet], Evidence],
    training: Callable[[], Evidence],
    track: Track = lambda items, _: items,
    among: Tensor | None = None,
) -> Found:
    """Compare all detectors, with their default options, between validation images and unknown images.

    A detector that is fitted on validation images is fitted on one half of them and scored on the other; both halves
    take turns. A scaled variant is compared too where a detector depends on the scale of the logits and T = 1 is its
    default in this run. `evidence` returns what a detector needs for a set, given with a key; `among` are the numbers
    of the validation images to use.
    """
    among = torch.arange(len(validation.labels)) if among is None else among
    order = among[torch.randperm(len(among), generator=generator("choice"))]
    parts = order[: len(order) // 2], order[len(order) // 2 :]
    scaled = [name for name in table("detector") if temperature_from(name, recipe.objective) == LOSS]
    found: Found = {}
    for name in track([*table("detector"), *(f"{name}:scaled" for name in scaled)], "ranking"):
        try:
            detector = build.detector(name, recipe, benchmark)
            known = evidence(detector, "fit/val", validation)
            others = [evidence(detector, f"tune/{key}", data) for key, data in unknown.items()]
            turns = [parts, parts[::-1]] if "validation" in detector.fits_on_splits else [(order, order)]
            values = []
            for fitted_on, scored_on in turns:
                if splits := detector.fits_on_splits:
                    detector.fit(*(known.take(fitted_on) if split == "validation" else training() for split in splits))
                scores = detector.score(known.take(scored_on)).cpu().numpy()
                values.append([auroc(scores, detector.score(other).cpu().numpy()) for other in others])
            found[name] = dict(zip(unknown, np.mean(values, axis=0).tolist(), strict=True))
        except ValueError as error:
            found[name] = {"refused": str(error)}
    return found


def best_of(found: Found) -> list[tuple[float, str]]:
    """Mean AUROC and name of the detectors that can be used, best first; the first of equal ones in the table wins."""
    means = [(float(np.mean(list(each.values()))), name) for name, each in found.items() if "refused" not in each]
    return sorted(means, key=lambda item: -item[0])


def choice_of(found: Found, unknown: Mapping[str, AnySet], known: int, left: int) -> Choice:
    """Return the record of a choice from the result of `rank`; a ValueError if no detector can be used.

    `known` validation images were compared with, and `left` are left for a threshold.
    """
    ranked = best_of(found)
    if not ranked:
        name, refused = next(iter(found.items()))
        raise ValueError(f"auto found no detector that can be used; {name}: {refused['refused']}")
    mean, name = ranked[0]
    second = f", {ranked[1][1]} has {100 * ranked[1][0]:.1f}" if len(ranked) > 1 else ""
    sets = ", ".join(unknown)
    return {
        "detector": name,
        "why": f"the best of {len(ranked)} by mean AUROC {100 * mean:.1f} of validation images against {sets}{second}",
        "known": known,
        "left": left,
        "on": {key: len(data.labels) for key, data in unknown.items()},
        "auroc": found,
    }


def choice_line(choice: Choice) -> str:
    """What was chosen and why, in one line."""
    return f"auto: {choice['detector']}, {choice['why']}"
