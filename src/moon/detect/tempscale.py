"""TempScale (Guo et al. 2017): the largest known probability after temperature scaling."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.temperature_scaling import TemperatureScaling
from moon.evidence import Evidence


class TempScale(Detector):
    """Maximum softmax probability after temperature scaling: max_k softmax(f / T)_k over the known classes.

    T is fitted to the labels of validation inputs by `TemperatureScaling`.

    K+1 rule: as in MSP, the unknown output is part of the softmax's denominator but not of the maximum, so it lowers
    the score.

    Example:
        >>> import torch
        >>> from moon import Evidence, TempScale
        >>> f = torch.tensor([[4.0, 0.0], [3.0, 0.0], [0.0, 4.0], [3.0, 0.0]])
        >>> validation = Evidence(f, torch.zeros(4, 8), num_known=2, labels=torch.tensor([0, 0, 1, 1]))
        >>> detector = TempScale().fit(validation)
        >>> detector.score(Evidence(torch.tensor([[4.0, 0.0], [1.0, 1.0]]), torch.zeros(2, 8), num_known=2))
        tensor([0.8124, 0.5000])
    """

    fits_on = "validation"

    def __init__(self) -> None:
        self.temperature: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.temperature = torch.tensor(TemperatureScaling().fit(evidence).temperature)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return TemperatureScaling(float(self._fitted("temperature")))(evidence).confidence
