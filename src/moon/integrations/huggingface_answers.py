"""Inputs to show, and what a classifier answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from moon.deploy.threshold import Threshold
from moon.detect import Detector


@dataclass(frozen=True)
class Answers:
    """What a classifier says about N inputs.

    Args:
        labels: For each input the name of a class, or "unknown".
        classes: The most likely known class of each input, whether it is accepted or not.
        probability: The probability of this class.
        score: The score of the detector; higher means more known.
        p_value: The p-value of "this input is known", see `moon.p_values`.
        is_known: Whether the input is accepted as known.

    Example:
        See `OpenClassifier`.
    """

    labels: list[str]
    classes: list[str]
    probability: NDArray[np.float32]
    score: NDArray[np.float64]
    p_value: NDArray[np.float64]
    is_known: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Inputs to show in a model card, with the answers of the classifier.

    Args:
        heading: What these inputs are.
        inputs: Texts, or images as an array of uint8 of shape (N, H, W, C). The classifier needs a processor for them.
        labels: The class of each input, "unknown" for those of no known class.

    Raises:
        ValueError: If there is not one label for each input.

    Example:
        >>> from moon.integrations.huggingface import Examples
        >>> Examples("other texts", ["It was a dark and stormy night."], ["unknown"]).is_text
        True
    """

    heading: str
    inputs: Sequence[str] | NDArray[np.uint8]
    labels: Sequence[str]

    def __post_init__(self) -> None:
        if not len(self.inputs) or len(self.inputs) != len(self.labels):
            raise ValueError(
                f"{len(self.labels)} labels for {len(self.inputs)} examples ({self.heading}); give one each"
            )

    @property
    def is_text(self) -> bool:
        """Whether the inputs are texts."""
        return isinstance(self.inputs[0], str)


class Classifier(Protocol):
    """What the files of an `OpenClassifier` need to know about it."""

    model: Any
    detector: Detector
    threshold: Threshold
    processor: Any
    metrics: dict[str, Any]

    @property
    def classes(self) -> list[str]: ...

    @property
    def masks(self) -> dict[str, Tensor]: ...

    @property
    def sparsity(self) -> float: ...

    def __call__(self, inputs: Any, /) -> Answers: ...


def check_several(inputs: Any, dimensions: int) -> None:
    """Raise a ValueError if raw inputs are one, not several: a text is a sequence of characters, an image one of rows.

    `dimensions` is the number of dimensions of an array of several inputs.
    """
    is_array = hasattr(inputs, "ndim")
    if is_array and inputs.ndim < dimensions:
        raise ValueError(
            f"an array of shape {tuple(inputs.shape)} is a single input, or has too few dimensions; give a list of "
            "inputs, such as classifier([x])"
        )
    if isinstance(inputs, str | bytes) or not (is_array or isinstance(inputs, Iterable)):
        raise ValueError(
            f"this is a single input, a {type(inputs).__name__}; give a list of inputs, such as classifier([x])"
        )
