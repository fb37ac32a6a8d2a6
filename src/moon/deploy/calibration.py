"""The threshold of a packed detector, and the scores behind it, as the file stores them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.deploy.threshold import find_threshold, images_needed
from moon.suggest import counted


@dataclass(frozen=True)
class Guarantee:
    """What a threshold promises, see `find_threshold`.

    Args:
        accept: The share of known images to accept, above 0 and below 1.
        confidence: With which probability over the calibration images at least this share is accepted; None: a new
            known image is accepted with this probability, on average over calibration images.
        per_class: Whether each predicted class has a threshold of its own, so that this holds for the images that are
            predicted as this class.

    Raises:
        ValueError: If a share is not above 0 and below 1.

    Example:
        >>> from moon import Guarantee
        >>> Guarantee(accept=0.9).needed
        9
    """

    accept: float = 0.95
    confidence: float | None = None
    per_class: bool = False

    def __post_init__(self) -> None:
        images_needed(self.accept, self.confidence)

    @property
    def needed(self) -> int:
        """The smallest number of calibration images, of each class if there is a threshold for each."""
        return images_needed(self.accept, self.confidence)

    def describe(self) -> str:
        """The guarantee in words."""
        share = f"{100 * self.accept:.4g}%"
        kind = ", for each predicted class separately" if self.per_class else ""
        if self.confidence is None:
            return f"accepts a known image with a probability of {share} or more{kind}"
        return f"accepts {share} of the known images or more, with a confidence of {100 * self.confidence:.4g}%{kind}"


def calibrate(
    scores: NDArray, predictions: NDArray, classes: list[str], guarantee: Guarantee
) -> tuple[dict[str, Any], dict[str, NDArray]]:
    """Find the threshold of a detector; a ValueError if there are too few images, or too few of a class.

    The scores are those of known images that were neither trained on nor used to fit the detector. The result is the
    description and the tensors of the file: `threshold` (one, or one for each class) and `calibration` (the sorted
    scores; with a threshold for each class sorted by class first, with `calibration.counts`).
    """
    if not guarantee.per_class:
        thresholds = [find_threshold(scores, guarantee.accept, guarantee.confidence).value]
        tensors = {"calibration": np.sort(scores)}
    else:
        groups = [np.sort(scores[predictions == label]) for label in range(len(classes))]
        for name, group in zip(classes, groups, strict=True):
            if len(group) < guarantee.needed:
                raise ValueError(
                    f"'{name}' is predicted for {counted(len(group), 'calibration image')} only, but a threshold for "
                    f"each class needs {guarantee.needed} of each; use one threshold for all, or more validation images"
                )
        thresholds = [find_threshold(group, guarantee.accept, guarantee.confidence).value for group in groups]
        counts = np.array([len(group) for group in groups], np.uint32)
        tensors = {"calibration": np.concatenate(groups), "calibration.counts": counts}
    tensors["calibration"] = tensors["calibration"].astype(np.float64)
    return asdict(guarantee), {"threshold": np.array(thresholds, np.float64), **tensors}
