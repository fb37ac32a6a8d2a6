"""Metrics of scores: per detector and unknown set, and their means over near and far sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.metrics import aupr, auroc, fpr_at_tpr
from moon.run.images import BenchmarkImages
from moon.score.files import KNOWN, Scores


def unknown_metrics(known: NDArray, unknown: NDArray) -> dict[str, float]:
    """All metrics of one detector on one unknown set."""
    return {
        "auroc": auroc(known, unknown),
        "fpr95": fpr_at_tpr(known, unknown),
        "fpr95_unknown_positive": fpr_at_tpr(known, unknown, positive="unknown"),
        "aupr_in": aupr(known, unknown),
        "aupr_out": aupr(known, unknown, positive="unknown"),
    }


def mean_metrics(rows: list[dict[str, float]]) -> dict[str, float]:
    """The unweighted mean over sets, as OpenOOD computes near and far."""
    return {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}


def tables(scores: Scores, images: BenchmarkImages) -> dict[str, Any]:
    """Metrics per detector and unknown set, with the means over near and far sets."""
    found = {}
    for detector, by_set in scores.items():
        metrics = {name: unknown_metrics(by_set[KNOWN], values) for name, values in by_set.items() if name != KNOWN}
        groups = {"near": images.benchmark.near, "far": images.benchmark.far}
        scored = {group: [name for name in members if name in metrics] for group, members in groups.items()}
        found[detector] = {"sets": metrics, **group_means(metrics, scored)}
    return found


def group_means(sets: Mapping[str, dict[str, float]], groups: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The means over the near and the far sets, for each group all of whose sets were scored."""
    members = {group: groups[group] for group in ("near", "far")}
    return {
        group: mean_metrics([sets[name] for name in names])
        for group, names in members.items()
        if names and all(name in sets for name in names)
    }
