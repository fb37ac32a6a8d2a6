"""Deep nearest neighbours (Sun et al. 2022): the negative distance to the k-th nearest training feature."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.weak import WeakTensorKeyDictionary

from moon.detect.base import Detector
from moon.detect.moments import long_directions
from moon.evidence import DiskTensor, Evidence, chunks, taken, version_of

_SIMILARITIES = 2**26  # computed at once: 256 MiB of float32

# The search in few directions (`_kth_of_few`), in which products of unit vectors are known up to rounding.
_LENGTH = 0.998  # of the squared length of the bank is in these directions
_MOST = 1 / 4  # of all directions, else all products are computed
_CANDIDATES = 3  # times k, and at most 1% of the bank
_GATHERED = 2**22  # numbers of candidates that are copied at once
_ROUNDING = 1e-5  # more than the error of a product, or of a squared length, in float32


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


def kth_rows(queries: Tensor, k: int, bank: Tensor) -> Tensor:
    """Find the row of a bank with the k-th largest product z . z_i. All vectors have length 1.

    Where there is much to compute on a CPU, most rows are excluded without computing their product: features of trained
    networks are long in few directions. With p the vector in these directions and r the length of the rest,
    z . z_i <= p . p_i + r r_i. This bound is one product of short vectors. Products are then computed for the rows
    with the largest bounds only, unless a row that is left out may be among the k nearest.

    Args:
        queries: z, of shape (N, D).
        k: Which row.
        bank: z_i, of shape (n, D), n >= k.

    Returns:
        The numbers of the rows, of shape (N,).
    """
    few = _few_directions(queries, k, bank)
    if few is None:
        return torch.cat([indices[:, -1] for _, indices in nearest_rows(queries, k, bank)])
    projection, short = few
    found = []
    for part in queries.split(max(1, _SIMILARITIES // len(bank))):
        bounds, candidates = (_shortened(part, projection) @ short.T).topk(_CANDIDATES * k, sorted=True)
        products = torch.cat([torch.bmm(bank[c], z[:, :, None])[:, :, 0] for c, z in _few(candidates, part)])
        values, order = products.topk(k, sorted=True)
        kth = candidates.gather(1, order[:, -1:])[:, 0]
        is_unsure = bounds[:, -1] + _ROUNDING >= values[:, -1]
        if is_unsure.any():
            kth[is_unsure] = torch.cat([indices[:, -1] for _, indices in nearest_rows(part[is_unsure], k, bank)])
        found.append(kth)
    return torch.cat(found)


def _few(candidates: Tensor, queries: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Some queries at a time, whose candidates have few numbers."""
    count = max(1, _GATHERED // (candidates.shape[1] * queries.shape[1]))
    return zip(candidates.split(count), queries.split(count), strict=True)


def _few_directions(queries: Tensor, k: int, bank: Tensor) -> tuple[Tensor, Tensor] | None:
    """The directions in which the bank is long, and the bank in them; None if all products are to be computed."""
    is_large = len(queries) >= bank.shape[1] and len(bank) >= 100 * _CANDIDATES * k
    if not is_large or bank.device.type != "cpu" or isinstance(bank, DiskTensor) or bank.dtype != torch.float32:
        return None
    version, found = _shorts.get(bank, (None, None))
    if version != version_of(bank):
        projection = long_directions((bank.T @ bank).double(), _LENGTH).to(bank)
        is_few = projection.shape[1] <= _MOST * bank.shape[1]
        found = (projection, _shortened(bank, projection)) if is_few else None
        _shorts[bank] = version_of(bank), found
    return found


def _shortened(z: Tensor, projection: Tensor) -> Tensor:
    """The vectors in the given directions, and an upper bound of the length of the rest."""
    p = z @ projection
    rest = z.square().sum(1, keepdim=True) - p.square().sum(1, keepdim=True)
    return torch.cat([p, (rest + _ROUNDING).clamp(min=0).sqrt()], 1)


_shorts: Any = WeakTensorKeyDictionary()  # by bank: its version, and the result of `_few_directions`


def usual_k(inputs: int) -> int:
    """Return which neighbour KNN uses if nothing else is said.

    It is the 50th, the usual one for the 50,000 images of CIFAR-10, and with fewer than 40,000 inputs one in 800 of
    them: the 50th neighbour in a smaller set is farther away, so the score says less.

    Args:
        inputs: The number of known inputs that it is fitted on.

    Returns:
        k, between 1 and 50.

    Example:
        >>> from moon.detect.knn import usual_k
        >>> usual_k(50_000), usual_k(3_500), usual_k(100)
        (50, 4, 1)
    """
    return min(50, max(1, inputs // 800))


def k_among(evidence: Evidence, k: int | None) -> int:
    """The k that is given, or the usual one for this evidence; a ValueError if there are fewer than k inputs."""
    k = usual_k(len(evidence)) if k is None else k
    if len(evidence) < k:
        raise ValueError(f"the {k}-th neighbour needs {k} known features, found {len(evidence)}")
    return k


class Knn(Detector):
    """Negative squared distance to the k-th nearest training feature: -||z - z_(k)||^2.

    All features are scaled to length 1. The search is exact: matrix products and top-k find the neighbour, and the
    distance is then computed from the features themselves.

    K+1 rule: only features are used, not the unknown output.

    Args:
        k: Which neighbour, at least 1; None: the 50th, and with fewer than 40,000 inputs one in 800 of them.
            `fit` needs at least `k` inputs. With fewer than `k` inputs of a class the neighbour of its inputs is of
            another class.

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
    grid: ClassVar = {"k": (50, 100, 200, 500, 1000, 1, 5, 10, 20)}  # the small ones for small sets

    def __init__(self, k: int | None = None) -> None:
        if k is not None and k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        self.k = k
        self.bank: Tensor | None = None

    def fit(self, evidence: Evidence) -> Self:
        k_among(evidence, self.k)
        self.bank = evidence.unit_features  # shared with other detectors that are fitted on the same features
        return self

    def score(self, evidence: Evidence) -> Tensor:
        bank = self._fitted("bank")
        features = normalize(evidence.features).to(bank)
        k = usual_k(len(bank)) if self.k is None else self.k
        return -(features - taken(bank, kth_rows(features, k, bank))).square().sum(1)
