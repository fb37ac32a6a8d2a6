"""What a packed network answers on test images, and what packing changed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data import AnySet
from moon.deploy.packed import PackedNetwork
from moon.detect import Detector
from moon.metrics import auroc
from moon.score.auto import Track
from moon.score.cache import EvidenceCache
from moon.score.files import KNOWN, scored_sets

CHECKED = 2000  # images of each set that are measured on


def measure(
    packed: PackedNetwork,
    detector: Detector,
    cache: EvidenceCache,
    checked: int = CHECKED,
    track: Track = lambda items, _: items,
) -> dict[str, dict[str, float]]:
    """Compare a packed network with the network in float32 and its full detector, on `checked` images of each set.

    The known test images have `images`, `accepted` (share), `accuracy` and `accuracy_float32`; each unknown set has
    `images`, `rejected` (share), `auroc` and `auroc_float32`.
    """
    benchmark, sets = cache.images.benchmark, scored_sets(cache.images)
    result: dict[str, dict[str, Any]] = {}
    scores: dict[str, tuple[NDArray, NDArray]] = {}
    for name in track(list(sets), "measuring"):
        part = evenly(sets[name], checked)
        answers, evidence = packed.answer(part, benchmark), cache.get(f"pack/{name}", part)
        scores[name] = answers["score"], detector.score(evidence).cpu().numpy()
        result[name] = {"images": len(part.labels)}
        if name == KNOWN:
            result[name] |= {
                "accepted": float(answers["is_known"].mean()),
                "accuracy": float((answers["label"] == part.labels).mean()),
                "accuracy_float32": float((evidence.prediction.cpu().numpy() == part.labels).mean()),
            }
        else:
            result[name] |= {
                "rejected": 1 - float(answers["is_known"].mean()),
                "auroc": auroc(scores[KNOWN][0], scores[name][0]),
                "auroc_float32": auroc(scores[KNOWN][1], scores[name][1]),
            }
    return result


def evenly(data: AnySet, count: int) -> AnySet:
    """At most `count` images of a set, evenly spaced."""
    total = len(data.labels)
    return data if total <= count else data.take(np.linspace(0, total - 1, count).round().astype(int))
