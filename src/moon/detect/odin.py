"""ODIN (Liang et al. 2018): a high temperature, and a small step towards the predicted class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from moon.detect.base import Detector
from moon.evidence import Evidence, look


class Odin(Detector):
    """max_k softmax(f(x~) / T)_k with x~ = x - epsilon * sign(grad_x -log softmax(f(x) / T)_c) / std.

    c is the predicted class; `std` is what the inputs were divided by, a value a channel, so that epsilon is in the
    units of the raw image (None: inputs were not scaled). The sign of 0 is taken as +1, as in the public code.

    K+1 rule: softmax over all outputs; c and the maximum over the K known ones. `released`: over all K+1.
    """

    grid: ClassVar = {"temperature": (1.0, 10.0, 100.0, 1000.0), "epsilon": (0.0014, 0.0028)}

    def __init__(
        self,
        temperature: float = 1000.0,
        epsilon: float = 0.0014,
        std: Sequence[float] | None = None,
        released: bool = False,
    ) -> None:
        if temperature <= 0 or epsilon < 0:
            raise ValueError(f"temperature={temperature} must be above 0 and epsilon={epsilon} at least 0")
        self.temperature, self.epsilon, self.released = temperature, epsilon, released
        self.std = None if std is None else tuple(std)

    def perturb(self, model: nn.Module, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            loss = -self._log_probabilities(look(model, x)).amax(1).sum()
            (gradient,) = torch.autograd.grad(loss, x)
        step = torch.where(gradient < 0, -self.epsilon, self.epsilon).to(x.dtype)
        if self.std is not None:
            step = step / torch.tensor(self.std, dtype=x.dtype, device=x.device)[:, None, None]
        return x.detach() - step

    def score(self, evidence: Evidence) -> Tensor:
        return self._log_probabilities(evidence).amax(1).exp()

    def _log_probabilities(self, evidence: Evidence) -> Tensor:
        log_p = (evidence.logits / self.temperature).log_softmax(1)
        return log_p if self.released else log_p[:, : evidence.num_known]
