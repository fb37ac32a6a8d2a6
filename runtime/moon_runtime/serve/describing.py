"""What a server says about its model: from the file, without paths of any machine."""

from __future__ import annotations

import hashlib
import re
from typing import Any

import numpy as np

import moon_runtime
from moon_runtime.classifier import Classifier
from moon_runtime.serve.settings import Settings

_BINS = 40
# A string that begins like an absolute path, up to its last part. Relative paths and addresses do not begin like this.
_PATH = re.compile(r"(?=[/~\\]|[A-Za-z]:[\\/]).*[\\/]", re.DOTALL)


def describe_model(classifier: Classifier, content: bytes, settings: Settings) -> dict[str, Any]:
    """A description of the model and of the server's limits, as plain values without NaN.

    Args:
        classifier: The model.
        content: The bytes of its file.
        settings: The limits of the server.
    """
    channels, rows, columns = classifier.input_shape
    found = classifier.metadata.get("provenance")
    provenance: dict[str, Any] = without_paths(found) if isinstance(found, dict) else {}
    return finite({
        "classes": classifier.classes,
        "input": {"channels": channels, "rows": rows, "columns": columns},
        "detector": classifier.detector,
        "threshold": {**classifier.metadata["threshold"], "scores": classifier.thresholds.tolist()},
        "calibration": {"images": len(classifier.calibration), "histogram": histogram(classifier.calibration)},
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "versions": {"moon": provenance.get("moon"), "moon_runtime": moon_runtime.__version__},
        "rejection": provenance.get("rejection"),
        "provenance": provenance,
        "limits": {
            "body_bytes": settings.max_body, "images": settings.max_images, "pixels": settings.max_pixels,
            "queue": settings.max_queue, "seconds": settings.timeout,
        },
    })  # fmt: skip


def histogram(scores: np.ndarray) -> dict[str, list[float]] | None:
    """How many scores are in each of 40 bins, the lowest and highest 0.5% in the outer ones; None if all are equal."""
    known = scores[np.isfinite(scores)]
    if not len(known):
        return None
    low, high = np.quantile(known, (0.005, 0.995))
    if not high > low or not np.isfinite(high - low):
        return None
    counts, edges = np.histogram(np.clip(known, low, high), _BINS, (low, high))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def finite(value: Any) -> Any:
    """A value of JSON without NaN and infinity, which become None."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value


def without_paths(value: Any) -> Any:
    """A value of JSON in which absolute paths are cut to their last part."""
    if isinstance(value, dict):
        return {key: without_paths(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [without_paths(inner) for inner in value]
    found = _PATH.match(value) if isinstance(value, str) else None
    return value[found.end() :] if found else value
