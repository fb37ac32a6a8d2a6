"""DAC (Thulasidasan et al. 2019): the unknown output lets the network abstain, at a price that rises."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective, Terms, at_least_float32
from moon.objectives.epoch import Epoch, epoch_number
from moon.objectives.models import open_logits


class Dac(Objective):
    """The deep abstaining classifier: (1 - p_{K+1}) * H_K - price * log(1 - p_{K+1}), averaged over the batch.

    H_K is the cross-entropy over the K known classes. The price follows Algorithm 1, which MOON took from DAC: in the
    quiet epochs the loss is the cross-entropy over K+1 outputs and (1 - p_{K+1}) * H_K is averaged; then the price
    changes linearly from a fraction of that average to its final value.

    Args:
        price: The schedule of the price. The paper's has 10 quiet epochs.

    Example:
        >>> import torch
        >>> from moon import AutoWeight, Dac, open_head
        >>> model = open_head(torch.nn.Linear(8, 4))
        >>> objective = Dac(AutoWeight(epochs=100, quiet_epochs=10))
        >>> x, y = torch.randn(16, 8), torch.arange(16) % 4
        >>> objective(model, x, y, epoch=0).backward()
        >>> objective.log(99)
        {'price': 1.0}
    """

    extra_logits = 1
    parts: ClassVar = {"price": partial(AutoWeight, quiet_epochs=10)}

    def __init__(self, price: AutoWeight) -> None:
        super().__init__()
        self.price = price

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: Epoch) -> Terms:
        logits = at_least_float32(open_logits(model, x, self))
        known = logits[:, :-1]
        # log(1 - p_{K+1}), exact where p_{K+1} is near 1.
        log_answers = known.logsumexp(1) - logits.logsumexp(1)
        answers = log_answers.exp()
        nll = cross_entropy(known, y, reduction="none")  # H_K
        number = epoch_number(epoch)
        self.price.observe(1 - answers.detach(), nll.detach(), number)
        # -log p_y over K+1 outputs is H_K - log(1 - p_{K+1}).
        quiet = number < self.price.quiet_epochs
        share = answers + quiet * (1 - answers)  # 1 in a quiet epoch, and so is the price
        price = self.price(number) + quiet
        return {"cross_entropy": (share * nll).mean(), "abstention": -(price * log_answers).mean()}

    def log(self, epoch: int) -> dict[str, float]:
        return {"price": float(self.price(epoch))}
