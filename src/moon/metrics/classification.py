"""How good and how honest a model is on inputs of known classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.metrics.checks import numbers, same_length


def accuracy(prediction, labels) -> float:
    """The share of predictions that equal their label."""
    prediction, labels = numbers(prediction, "prediction"), numbers(labels, "labels")
    same_length(prediction, labels, "prediction and labels")
    return float(np.mean(prediction == labels))


def ece(confidence, correct, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of |bin| / N * |accuracy - mean confidence| (Guo et al. 2017).

    The bins are equal and closed on the right, (0, 1/bins], ..., so a confidence of exactly 1 is counted; 0 falls
    into the first.
    """
    confidence, correct = numbers(confidence, "confidence"), numbers(correct, "correct")
    same_length(confidence, correct, "confidence and correct")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    if confidence.min() < 0 or confidence.max() > 1 + 1e-6:
        raise ValueError("confidence must be probabilities in [0, 1]; are these logits?")
    confidence, correct = confidence.astype(np.float64), correct.astype(np.float64)
    edges = np.arange(1, bins) / bins
    which = np.searchsorted(edges, confidence, side="left")
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _probabilities(probabilities, labels) -> tuple[NDArray, NDArray]:
    """Checked (N, K) probabilities and labels; rows may sum to less than 1 (an open head's p_1..p_K)."""
    probabilities = numbers(probabilities, "probabilities", ndim=2).astype(np.float64)
    labels = numbers(labels, "labels").astype(np.int64)
    same_length(probabilities, labels, "probabilities and labels")
    if probabilities.min() < 0 or probabilities.sum(1).max() > 1 + 1e-4:
        raise ValueError("probabilities must be at least 0 and sum to at most 1 a row; are these logits?")
    classes = probabilities.shape[1]
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, found {labels.min()}..{labels.max()}")
    return probabilities, labels


def nll(probabilities, labels) -> float:
    """Mean negative log-likelihood of the labels.

    A probability that underflowed to zero counts as the smallest normal number.
    """
    probabilities, labels = _probabilities(probabilities, labels)
    likelihood = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(likelihood, np.finfo(np.float64).tiny)).mean())


def brier(probabilities, labels) -> float:
    """Mean squared distance between the probabilities and the one-hot label, summed over all outputs.

    What a row lacks to 1 is the mass of the unknown output and counts as one more class that is never right.
    """
    probabilities, labels = _probabilities(probabilities, labels)
    unknown = np.clip(1 - probabilities.sum(1), 0, None)
    target = np.zeros_like(probabilities)
    target[np.arange(len(labels)), labels] = 1
    return float((((probabilities - target) ** 2).sum(1) + unknown**2).mean())
