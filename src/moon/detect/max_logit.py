"""Maximum logit (Hendrycks et al. 2022): the largest known logit, `mls` in OpenOOD."""

from __future__ import annotations

from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


class MaxLogit(Detector):
    """The largest known logit: max_k f_k.

    K+1 rule: the maximum is over the K known outputs, or over all K+1 if `released`.

    Args:
        released: Take the maximum over all outputs, as the public code does.

    Example:
        >>> import torch
        >>> from moon import Evidence, MaxLogit
        >>> evidence = Evidence(torch.tensor([[4.0, 0.0, 0.0], [0.0, 1.0, 3.0]]), torch.zeros(2, 8), num_known=2)
        >>> MaxLogit().score(evidence)
        tensor([4., 1.])
    """

    def __init__(self, released: bool = False) -> None:
        self.released = released

    def score(self, evidence: Evidence) -> Tensor:
        return (evidence.logits if self.released else evidence.known_logits).amax(1)
