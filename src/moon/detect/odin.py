"""ODIN (Liang et al. 2018): the largest probability at a high temperature, after a step towards the predicted class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from moon.detect.base import Detector
from moon.evidence import Evidence, look


class Odin(Detector):
    """ODIN: max_k softmax(f(x~) / T)_k with x~ = x - epsilon * sign(grad_x -log softmax(f(x) / T)_c) / std.

    c is the predicted class. The sign of 0 is +1, as in the public code. Run the model on the changed inputs with
    `read(model, loader, odin.perturb)`.

    K+1 rule: the softmax is over all outputs; c and the maximum are over the K known ones (over all K+1 if
    `released`).

    Args:
        temperature: T, above 0.
        epsilon: The size of the step, at least 0, in units of the raw image.
        std: The values that the inputs were divided by, one per channel. None if the inputs were not scaled.
        released: Let c and the maximum include the unknown output, as the public code does.

    Example:
        >>> import torch
        >>> from moon import Odin, read
        >>> model = torch.nn.Linear(2, 2, bias=False)
        >>> _ = torch.nn.init.eye_(model.weight)
        >>> odin = Odin(temperature=1.0, epsilon=0.1)
        >>> odin.score(read(model, [torch.tensor([[4.0, 0.0], [1.0, 2.0]])], odin.perturb))
        tensor([0.9852, 0.7685])
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
