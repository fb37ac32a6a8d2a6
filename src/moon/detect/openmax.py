"""OpenMax (Bendale and Boult 2016): the negative unknown probability of revised logits."""

from __future__ import annotations

from math import log
from typing import ClassVar, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence, taken


def fit_weibull(x: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a Weibull distribution of location 0 by maximum likelihood to values of at least 0; return shape and scale.

    The shape k solves sum x^k log x / sum x^k - 1/k = mean log x. The left side increases with k, so bisection finds
    it.
    """
    log_x = x.clamp(min=x.amax().clamp(min=1e-30).item() * 1e-12).log()
    low, high = x.new_tensor(1e-2), x.new_tensor(1e2)
    for _ in range(60):
        k = (low + high) / 2
        too_large = ((k * log_x).softmax(0) * log_x).sum() - 1 / k > log_x.mean()
        low, high = torch.where(too_large, low, k), torch.where(too_large, k, high)
    k = (low + high) / 2
    log_mean_power = (k * log_x).logsumexp(0) - log(len(x))
    return k, (log_mean_power / k).exp()


class OpenMax(Detector):
    """Negative probability of the unknown after the `top` largest logits are lowered by the distance to their class.

    Class k has a mean mu_k (of the logits v of its correctly predicted training inputs) and a Weibull distribution of
    the `tail` largest distances |v - mu_k|. The r-th largest logit, r = 0..top-1, loses the share
    (top - r) / top * WeibullCDF(|v - mu_k|). The sum of these losses is the logit of the unknown.

    K+1 rule: v are the K known logits; the model's own unknown output is not used.

    Args:
        tail: The number of distances per class that the Weibull distribution is fitted to, at least 3.
        top: The number of logits to lower, at least 1.

    Example:
        >>> import torch
        >>> from moon import Evidence, OpenMax
        >>> noise = torch.linspace(0.0, 2.0, 20)
        >>> a, b = torch.stack([6 - noise, noise], 1), torch.stack([noise, 6 - noise**2], 1)
        >>> v, labels = torch.cat([a, b]), torch.tensor([0] * 20 + [1] * 20)
        >>> openmax = OpenMax(tail=5, top=1).fit(Evidence(v, v, num_known=2, labels=labels))
        >>> new = torch.tensor([[6.0, 1.0], [4.0, 4.0]])
        >>> openmax.score(Evidence(new, new, num_known=2))
        tensor([-0.0025, -0.4955])
    """

    fits_on = "train"
    can_be_scaled = True
    grid: ClassVar = {"tail": (10, 20, 40), "top": (1, 3, 10)}

    def __init__(self, tail: int = 20, top: int = 3) -> None:
        if tail < 3 or top < 1:
            raise ValueError(f"tail={tail} must be at least 3 and top={top} at least 1")
        self.tail, self.top = tail, top
        self.means: Tensor | None = None
        self.weibull: Tensor | None = None  # (K, 3): location, shape, scale

    def fit(self, evidence: Evidence) -> Self:
        labels = self._labels(evidence)
        correct = evidence.prediction == labels
        means, models = [], []
        for k in range(evidence.num_known):
            members = taken(evidence.logits, correct & (labels == k))[:, : evidence.num_known].contiguous()
            if len(members) < 3:
                raise ValueError(
                    f"OpenMax needs three correctly predicted inputs of class {k}, found {len(members)}; fit on more"
                )
            means.append(members.mean(0))
            largest = (members - means[-1]).norm(dim=1).sort(descending=True).values[: self.tail].double()
            location = largest[-1]  # the tail starts at its smallest distance
            models.append(torch.stack([location, *fit_weibull(largest[:-1] - location)]))
        self.means = torch.stack(means)
        self.weibull = torch.stack(models).to(evidence.logits.dtype)
        return self

    def score(self, evidence: Evidence) -> Tensor:
        means, weibull = self._fitted("means"), self._fitted("weibull")
        v = evidence.known_logits.to(means)
        distance = torch.cdist(v, means)
        location, shape, scale = weibull.unbind(1)
        outside = 1 - (-(((distance - location).clamp(min=0) / scale) ** shape)).exp()  # (N, K)
        top = min(self.top, v.shape[1])
        order = v.argsort(1, descending=True)[:, :top]
        share = torch.zeros_like(v).scatter(1, order, (torch.arange(top, 0, -1).to(v) / top).expand(len(v), top))
        lost = v * share * outside
        return -torch.cat([v - lost, lost.sum(1, keepdim=True)], 1).softmax(1)[:, -1]
