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
    """Return the directions in which vectors are longest.

    Args:
        moment: The sum or mean of z z^T over the vectors z, of shape (D, D), in float64.
        share: The share of the squared length of all vectors that these directions contain.

    Returns:
        As few orthonormal directions as possible, the longest first, of shape (D, directions).
    """
    lengths, directions = torch.linalg.eigh(moment)  # in increasing order
    contained = lengths.flip(0).cumsum(0) / lengths.sum()
    return directions.flip(1)[:, : int((contained < share).sum()) + 1]


def class_means(features: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Return the mean features of each class.

    Args:
        features: Features of shape (N, D).
        labels: Their classes, of shape (N,). Inputs with a negative label are left out.
        classes: The number of classes.

    Returns:
        A tensor of shape (classes, D); zero for a class without inputs.
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
    """Return the mean of (z - c)(z - c)^T over the features z, in float64.

    Args:
        features: Features of shape (N, D).
        centres: c, of shape (D,); or, with labels, that of each class, of shape (K, D).
        labels: The classes of the features.

    Returns:
        A float64 tensor of shape (D, D).
    """
    total = features.new_zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for part, *y in chunks(features, *([] if labels is None else [labels])):
        centred = part.to(torch.float64, copy=True)
        centred -= centres[y[0]] if y else centres  # in place, to need less memory
        total += centred.T @ centred
    return total / len(features)
