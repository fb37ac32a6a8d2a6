"""OpenMax (Bendale and Boult 2016): minus the unknown probability of lowered logits."""

from __future__ import annotations

from math import log
from typing import ClassVar, Self

import torch
from torch import Tensor

from moon.detect.base import Detector
from moon.evidence import Evidence


def fit_weibull(x: Tensor) -> tuple[Tensor, Tensor]:
    """(shape, scale) of the Weibull distribution of greatest likelihood; x is at least 0.

    The shape k solves sum x^k log x / sum x^k - 1/k = mean log x, whose left side rises with k.
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
    """-p(unknown) after the `top` largest logits are lowered by how far the input is from their class.

    Class k has a mean activation mu_k (of rightly predicted training inputs' logits v) and a Weibull distribution of
    the `tail` largest distances |v - mu_k|. The r-th largest logit, r = 0..top-1, loses the share
    (top - r) / top * WeibullCDF(|v - mu_k|), and what all lose together is the logit of the unknown.

    K+1 rule: v is the K known logits; the model's own unknown output plays no part.
    """

    fits_on = "train"
    grid: ClassVar = {"tail": (10, 20, 40), "top": (1, 3, 10)}

    def __init__(self, tail: int = 20, top: int = 3) -> None:
        if tail < 3 or top < 1:
            raise ValueError(f"tail={tail} must be at least 3 and top={top} at least 1")
        self.tail, self.top = tail, top
        self.means: Tensor | None = None
        self.weibull: Tensor | None = None  # (K, 3): location, shape, scale

    def fit(self, evidence: Evidence) -> Self:
        if evidence.labels is None:
            raise ValueError("OpenMax needs the labels of the known inputs it is fitted on")
        v, right = evidence.known_logits, evidence.prediction == evidence.labels
        means, models = [], []
        for k in range(evidence.num_known):
            members = v[right & (evidence.labels == k)]
            if len(members) < 3:
                raise ValueError(
                    f"fewer than three inputs of class {k} are predicted rightly; OpenMax cannot be fitted"
                )
            means.append(members.mean(0))
            largest = (members - means[-1]).norm(dim=1).sort(descending=True).values[: self.tail].double()
            location = largest[-1]  # the tail begins at its smallest distance
            models.append(torch.stack([location, *fit_weibull(largest[:-1] - location)]))
        self.means = torch.stack(means)
        self.weibull = torch.stack(models).to(v)
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
