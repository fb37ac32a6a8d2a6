"""Base class of detectors that change the features and apply the classifier again."""

from __future__ import annotations

import logging
from abc import abstractmethod
from functools import cache
from inspect import signature

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence

_log = logging.getLogger(__name__)

_WIDE = 512  # features; the default percentiles were published for 512 and 2048


class Shaping(Detector):
    """Energy of changed features z': log sum_k exp(f_k) with f = W z' + b over the known classes.

    Evidence holds both the features that reach the classifier and the classifier itself, so no second forward pass and
    no hook on the model is needed. Subclasses implement `shape`.
    """

    depends_on_scale = True

    @abstractmethod
    def shape(self, features: Tensor) -> Tensor:
        """Return the changed features.

        Args:
            features: The features, of shape (N, D).

        Returns:
            A tensor of the same shape.
        """

    def classifier(self, evidence: Evidence) -> tuple[Tensor, Tensor]:
        """Return the weight and bias of the known classes. DICE overrides this.

        Args:
            evidence: The evidence that is scored.

        Returns:
            The weight, of shape (K, D), and the bias, of shape (K,).
        """
        return evidence.known_head

    def score(self, evidence: Evidence) -> Tensor:
        weight, bias = self.classifier(evidence)
        logits = self.shape(evidence.features) @ weight.T + bias
        return logits.to(evidence.logits.dtype).logsumexp(1)


def check_percentile(percentile: float) -> None:
    """Raise `ValueError` unless `percentile` is in [0, 100)."""
    if not 0 <= percentile < 100:
        raise ValueError(f"percentile must be in [0, 100), not {percentile}")


@cache
def warn_if_narrow(kind: type[Shaping], percentile: float, width: int) -> None:
    """Warn, once, if the default percentile leaves too little of a narrow network."""
    if width < _WIDE and percentile == signature(kind).parameters["percentile"].default:
        name = kind.__name__.lower()
        _log.warning("%s: its default percentile=%g is for %d features or more and may leave too few of %d; compare a "
                     "lower one, such as %s:percentile=65", name, percentile, _WIDE, width, name)  # fmt: skip
