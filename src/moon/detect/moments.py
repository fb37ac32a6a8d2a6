"""Means and covariances of training features, computed chunk by chunk: the features may be on disk."""

from __future__ import annotations

import torch
from torch import Tensor

from moon.evidence import chunks


def mean_features(features: Tensor) -> Tensor:
    """Return the mean of features of shape (N, D), of shape (D,)."""
    mean = torch.zeros_like(features[0])
    for (part,) in chunks(features):
        mean += part.mean(0) * (len(part) / len(features))
    return mean


def long_directions(moment: Tensor, share: float) -> Tensor:
    """Return the directions in which vectors z are longest, from the sum or mean of z z^T (D, D), in float64.

    They are orthonormal columns, the longest first: as few as contain this share of the squared length of all vectors.
    """
    lengths, directions = torch.linalg.eigh(moment)  # in increasing order
    contained = lengths.flip(0).cumsum(0) / lengths.sum()
    return directions.flip(1)[:, : int((contained < share).sum()) + 1]


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean features of each class, (classes, D); zero for a class without inputs.

    Inputs with a negative label are left out.
    """
    counts = labels[labels >= 0].bincount(minlength=classes).tolist()
    means = features.new_zeros(classes, features.shape[1])
    for part, y in chunks(features, labels):
        for k in y.unique().tolist():
            if k >= 0:
                members = part[y == k]
                means[k] += members.mean(0) * (len(members) / counts[k])
    return means


def second_moment(features: Tensor, centres: Tensor, labels: Tensor | None = None) -> Tensor:
    """Return the mean of (z - c)(z - c)^T over the features z, (D, D), in float64.

    The centres c are (D,), or (K, D) for features with labels.
    """
    total = features.new_zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for part, *y in chunks(features, *([] if labels is None else [labels])):
        centred = part.to(torch.float64, copy=True)
        centred -= centres[y[0]] if y else centres  # in place, to need less memory
        total += centred.T @ centred
    return total / len(features)
