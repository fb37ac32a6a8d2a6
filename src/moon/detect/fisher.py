"""Fisher's combination (Fisher 1932): MSP, fDBD and KNN as one, by their p values among known inputs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.detect.fdbd import Fdbd
from moon.detect.knn import Knn
from moon.detect.msp import Msp
from moon.evidence import Evidence


class Fisher(Detector):
    """log p_MSP + log p_fDBD + log p_KNN, with p_d = (1 + #{validation inputs that d scores no higher}) / (n + 1).

    p_d is how rare such a low score is among n known inputs, whatever the scale of d: the p value of "x is known". The
    n inputs are held out of training, since what the model was fitted to scores higher than anything new.

    K+1 rule: that of the three. The unknown output lowers MSP and plays no part in the others.
    """

    fits_on = "both"

    def __init__(self, k: int = 50) -> None:
        self.k = k
        self.parts = {"msp": Msp(), "fdbd": Fdbd(), "knn": Knn(k)}
        self.reference: Tensor | None = None  # (parts, n): the scores of the validation inputs, in order

    def fit(self, evidence: Evidence, validation: Evidence | None = None) -> Self:
        if validation is None or not len(validation):
            raise ValueError("Fisher wants known inputs that were not trained on, too; call fit(training, validation)")
        for part in self.parts.values():
            part.fit(evidence)
        reference = torch.stack([part.score(validation) for part in self.parts.values()])
        if reference.isnan().any():
            raise ValueError("the scores of some validation inputs are not numbers; see what the model says of them")
        self.reference = reference.sort().values
        return self

    def score(self, evidence: Evidence) -> Tensor:
        return self.score_given(evidence, {})

    def score_given(self, evidence: Evidence, scores: Mapping[str, Tensor]) -> Tensor:
        reference = self._fitted("reference")
        each = torch.stack([scores[d] if d in scores else part.score(evidence) for d, part in self.parts.items()])
        no_higher = torch.searchsorted(reference, each.to(reference), right=True).to(each)
        p = (1 + no_higher) / (1 + reference.shape[1])
        return p.where(~each.isnan(), each).log().sum(0)  # what is no number stays none

    def state_dict(self) -> dict[str, Tensor]:
        learned = {f"{name}.{key}": v for name, part in self.parts.items() for key, v in part.state_dict().items()}
        return super().state_dict() | learned

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        super().load_state_dict({key: value for key, value in state.items() if "." not in key})
        for name, part in self.parts.items():
            start = f"{name}."
            part.load_state_dict({key.removeprefix(start): v for key, v in state.items() if key.startswith(start)})
