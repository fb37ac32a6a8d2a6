"""What reports and figures show of individual images: example images, and values per known test image."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from moon.data import AnySet, ImageList
from moon.data.image_files import decode_image
from moon.evidence import Evidence
from moon.score.files import KNOWN

COUNT = 6  # images of each kind


def examples(sets: Mapping[str, AnySet], scores: Mapping[str, NDArray], known: Evidence) -> dict[str, NDArray]:
    """The images that one detector ranked best and worst, by `right/<set>` and `wrong/<set>`, the most extreme first.

    For the known set these are the most confident correct and wrong predictions, for an unknown set the lowest and the
    highest scores.
    """
    correct = (known.prediction == known.labels).cpu().numpy()
    found = {}
    for name, data in sets.items():
        ascending = np.argsort(scores[name], kind="stable")
        descending = ascending[::-1]
        chosen = {"right": ascending, "wrong": descending}
        if name == KNOWN:
            chosen = {"right": descending[correct[descending]], "wrong": descending[~correct[descending]]}
        for side, indices in chosen.items():
            if len(indices):
                found[f"{side}/{name}"] = thumbnails(data, indices[:COUNT])
    return found


def thumbnails(data: AnySet, indices: NDArray) -> NDArray[np.uint8]:
    """These images, small enough for a report."""
    if isinstance(data, ImageList):
        return np.stack([decode_image(path, 64, path).pixels for path in (data.root / data.paths[i] for i in indices)])
    return data.images[indices]


def known_values(known: Evidence) -> dict[str, NDArray]:
    """What figures show of known images, one value per image."""
    labels = known.labels
    assert labels is not None
    centred = known.features - known.features.mean(0)
    component = torch.linalg.eigh(centred.T @ centred)[1][:, -1]  # of the largest eigenvalue
    component = component * component[component.abs().argmax()].sign()  # fix the sign, which is arbitrary
    values = {
        "labels": labels,
        "prediction": known.prediction,
        "confidence": known.confidence.float(),
        "p_unknown": known.unknown.float(),
        "first_component": (centred @ component).float(),
    }
    return {name: value.cpu().numpy() for name, value in values.items()}
