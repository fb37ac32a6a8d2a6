"""TempScale (Guo et al. 2017): the largest known probability after temperature scaling."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.temperature_scaling import TemperatureScaling
from moon.evidence import Evidence


class TempScale(Detector):
    """max_k softmax(f / T)_k over the known classes, T fitted to the labels of validation inputs.

    K+1 rule: as in MSP, the unknown output is in the normaliser but not in the maximum, so it lowers the score.
    """

    fits_on = "validation"

    def __init__(self) -> None:
        self.temperature: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        self.temperature = torch.tensor(TemperatureScaling().fit(evidence).temperature)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return TemperatureScaling(float(self._fitted("temperature")))(evidence).confidence
