"""A detector on scaled evidence: logits divided by the temperature fitted on validation inputs."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.temperature_scaling import TemperatureScaling
from moon.evidence import Evidence


class Scaled(Detector):
    """Another detector on logits / T, with T fitted to the labels of validation inputs.

    The scores of `Energy` and similar detectors depend on the scale of the logits: log sum exp ranks inputs by the mean
    logit if logits are small and by the largest if they are large. Networks trained on normalised logits have logits of
    an arbitrary scale. For them `moon score --detector ebo` scores with `Scaled(Energy())`; for all others `ebo:scaled`
    does.

    K+1 rule: all outputs are divided by T, then the rule of the inner detector applies.

    Args:
        inner: The detector to apply to the scaled evidence.

    Example:
        >>> import torch
        >>> from moon import Energy, Evidence, Scaled
        >>> logits = 0.01 * torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 0.0]])
        >>> validation = Evidence(logits, torch.zeros(4, 8), num_known=2, labels=torch.tensor([0, 0, 1, 1]))
        >>> detector = Scaled(Energy()).fit(validation)
        >>> round(float(detector.temperature), 4)
        0.0273
    """

    def __init__(self, inner: Detector) -> None:
        self.inner = inner
        self.grid = inner.grid  # pyright: ignore[reportAttributeAccessIssue]
        self.rotates = inner.rotates
        self.temperature: Tensor | None = None

    @property
    def fits_on_splits(self) -> tuple[str, ...]:
        """The splits of the inner detector, and the validation split."""
        return (*(split for split in self.inner.fits_on_splits if split != "validation"), "validation")

    def fit(self, evidence: Evidence, validation: Evidence | None = None) -> Self:
        """Fit the temperature and the inner detector.

        Args:
            evidence: Evidence of training inputs if the inner detector needs some, else of validation inputs.
            validation: Evidence of validation inputs, if the first argument is of training inputs.

        Returns:
            The detector itself.

        Raises:
            ValueError: If there is no evidence of validation inputs.
        """
        given = dict(zip(self.fits_on_splits, (e for e in (evidence, validation) if e is not None), strict=False))
        if "validation" not in given:
            raise ValueError("the temperature needs known inputs that were not trained on: fit(training, validation)")
        self.temperature = torch.tensor(TemperatureScaling().fit(given["validation"]).temperature)
        if splits := self.inner.fits_on_splits:
            self.inner.fit(*(self._scaled(given[split]) for split in splits))
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return self.inner.score(self._scaled(evidence))

    def _scaled(self, evidence: Evidence) -> Evidence:
        return TemperatureScaling(float(self._fitted("temperature")))(evidence)

    def options(self) -> dict[str, Any]:
        return self.inner.options()

    def state_dict(self) -> dict[str, Tensor]:
        return super().state_dict() | {f"inner.{key}": value for key, value in self.inner.state_dict().items()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({key: value for key, value in state.items() if "." not in key})
        inner = {key.removeprefix("inner."): value for key, value in state.items() if key.startswith("inner.")}
        self.inner.load_state_dict(inner)
