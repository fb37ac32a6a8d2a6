"""Deep nearest neighbours (Sun et al. 2022): the negative distance to the k-th nearest training feature."""

from __future__ import annotations

from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from moon.detect.base import Detector
from moon.evidence import Evidence, chunks, taken

_SIMILARITIES = 2**26  # computed at once: 256 MiB of float32


def nearest_rows(queries: Tensor, k: int, bank: Tensor, *weights: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Find the k rows of a bank with the largest product z . z_i, or z . z_i w_i.

    The bank is read once, chunk by chunk, so it may be on disk.

    Args:
        queries: z, of shape (N, D).
        k: How many rows.
        bank: z_i, of shape (n, D), n >= k.
        *weights: w_i, of shape (n, 1), if there are any.

    Returns:
        For some of the queries at a time, in order: the k largest products in decreasing order, and the numbers of
        their rows. Both have the shape (queries, k).
    """
    parts: list[Tensor] = []
    found: list[tuple[Tensor, Tensor]] = []
    start = 0
    for rows, *w in chunks(bank, *weights):
        rows = rows * w[0] if w else rows
        parts = parts or list(queries.split(max(1, _SIMILARITIES // len(rows))))
        for at, part in enumerate(parts):
            values, indices = (part @ rows.T).topk(min(k, len(rows)), sorted=True)
            if not start:
                found.append((values, indices))
                continue
            values, order = torch.cat([found[at][0], values], 1).topk(min(k, start + len(rows)), sorted=True)
            found[at] = values, torch.cat([found[at][1], indices + start], 1).gather(1, order)
        start += len(rows)
    return found


class Knn(Detector):
    """Negative squared distance to the k-th nearest training feature: -||z - z_(k)||^2.

    All features are scaled to length 1. The search is exact: a matrix product and top-k find the neighbour, and the
    distance is then computed from the features themselves.

    K+1 rule: only features are used, not the unknown output.

    Args:
        k: Which neighbour, at least 1. `fit` needs at least `k` inputs.

    Example:
        >>> import torch
        >>> from moon import Evidence, Knn
        >>> z = torch.tensor([[4.0, 0.0], [3.0, 1.0], [0.0, 4.0], [1.0, 3.0]])
        >>> knn = Knn(k=2).fit(Evidence(logits=z, features=z, num_known=2))
        >>> new = torch.tensor([[5.0, 1.0], [2.0, 2.0]])
        >>> knn.score(Evidence(logits=new, features=new, num_known=2))
        tensor([-0.0388, -0.2111])
    """

    fits_on = "train"
    grid: ClassVar = {"k": (50, 100, 200, 500, 1000)}

    def __init__(self, k: int = 50) -> None:
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k = k
        self.bank: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        if len(evidence) < self.k:
            raise ValueError(f"the {self.k}-th neighbour needs {self.k} known features, found {len(evidence)}")
        self.bank = evidence.unit_features  # shared with other detectors that are fitted on the same features
        return self

    def score(self, evidence: Evidence) -> Tensor:
        bank = self._fitted("bank")
        features = normalize(evidence.features).to(bank)
        kth = torch.cat([indices[:, -1] for _, indices in nearest_rows(features, self.k, bank)])
        return -(features - taken(bank, kth)).square().sum(1)
