"""DAC (Thulasidasan et al. 2019): the K+1-th output may abstain, at a price that rises."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective, Terms, check_open, widened


class Dac(Objective):
    """(1 - p_{K+1}) * H_K - price * log(1 - p_{K+1}), mean over the batch; H_K is the K-way cross-entropy.

    The price follows Algorithm 1, of which it is the origin: in the quiet epochs the loss is the K+1-way cross-entropy
    and (1 - p_{K+1}) * H_K is observed; then the price is linear from a small share of that to `final`.
    """

    extra_logits = 1
    parts: ClassVar = {"price": partial(AutoWeight, quiet_epochs=10)}

    def __init__(self, price: AutoWeight) -> None:
        super().__init__()
        self.price = price

    def terms(self, model: nn.Module, x: Tensor, y: Tensor, *, epoch: int | Tensor) -> Terms:
        check_open(model, self)
        logits = widened(model(x))
        known = logits[:, :-1]
        # log(1 - p_{K+1}), exact where p_{K+1} is near 1.
        log_answers = known.logsumexp(1) - logits.logsumexp(1)
        answers = log_answers.exp()
        nll = cross_entropy(known, y, reduction="none")  # H_K
        self.price.observe(1 - answers.detach(), nll.detach(), epoch)
        # -log p_y over K+1 outputs is H_K - log(1 - p_{K+1}).
        quiet = epoch < self.price.quiet_epochs
        share = answers + quiet * (1 - answers)  # 1 in a quiet epoch, and so is the price
        price = self.price(epoch) + quiet
        return {"cross_entropy": (share * nll).mean(), "abstention": -(price * log_answers).mean()}

    def log(self, epoch: int) -> dict[str, float]:
        return {"price": float(self.price(epoch))}
