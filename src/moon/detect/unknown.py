"""Unknown probability (Lei et al. 2024): the negative probability of the K+1-th output."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class Unknown(Detector):
    """Negative probability of the unknown output: -p_{K+1}.

    K+1 rule: the score is this output. A model with K outputs has none, and `score` raises an error.

    Example:
        >>> import torch
        >>> from moon import Evidence, Unknown
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> Unknown().score(evidence)
        tensor([-0.0177, -0.8438])
    """

    depends_on_scale = True

    def score(self, evidence: Evidence) -> Tensor:
        if not evidence.is_open:
            raise ValueError("Unknown needs the K+1-th output; train the model with an open head (open_head)")
        return -evidence.unknown
