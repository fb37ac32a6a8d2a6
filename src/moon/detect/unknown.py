"""Unknown probability (Lei et al. 2024): minus what the K+1-th output says."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Unknown(Detector):
    """-p_{K+1}.

    K+1 rule: this is that output. A K-way model has none and is refused.
    """

    def score(self, evidence: Evidence) -> Tensor:
        if not evidence.is_open:
            raise ValueError("Unknown needs the K+1-th output; train the model with an open head (open_head)")
        return -evidence.unknown
