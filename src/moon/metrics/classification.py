"""Metrics on inputs of known classes: accuracy, and the quality of probabilities (ECE, NLL, Brier score)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moon.arrays import Numbers, check_same_length, to_array


def accuracy(prediction: Numbers, labels: Numbers) -> float:
    """The share of predictions that equal their label.

    Args:
        prediction: Predicted classes, of shape (N,).
        labels: True classes, of shape (N,).

    Returns:
        A fraction in [0, 1].

    Example:
        >>> from moon import accuracy
        >>> accuracy([0, 1, 2, 2], [0, 1, 2, 0])
        0.75
    """
    prediction, labels = to_array(prediction, "prediction"), to_array(labels, "labels")
    check_same_length(prediction, labels, "prediction and labels")
    return float(np.mean(prediction == labels))


def ece(confidence: Numbers, correct: Numbers, bins: int = 15) -> float:
    """Expected calibration error: sum over bins of |bin| / N * |accuracy - mean confidence| (Guo et al. 2017).

    The bins have equal width and are closed on the right: (0, 1/bins], ..., (1 - 1/bins, 1]. A confidence of 0 falls
    into the first bin.

    Args:
        confidence: The probability of each prediction, of shape (N,).
        correct: Whether each prediction is correct, of shape (N,): booleans, or 0 and 1.
        bins: The number of bins, at least 1.

    Returns:
        A fraction in [0, 1]; 0 is best.

    Example:
        >>> from moon import ece
        >>> round(ece([0.9, 0.8, 0.6, 0.6], [True, True, True, False], bins=5), 3)
        0.125
    """
    confidence, correct = to_array(confidence, "confidence"), to_array(correct, "correct")
    check_same_length(confidence, correct, "confidence and correct")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, not {bins}")
    if confidence.min() < 0 or confidence.max() > 1 + 1e-6:
        raise ValueError("confidence must be probabilities in [0, 1]; are these logits?")
    confidence, correct = confidence.astype(np.float64), correct.astype(np.float64)
    edges = np.arange(1, bins) / bins
    which = np.searchsorted(edges, confidence, side="left")
    gaps = np.bincount(which, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(confidence))


def _checked(probabilities: Numbers, labels: Numbers) -> tuple[NDArray, NDArray]:
    """Return checked (N, K) probabilities and labels; rows may sum to less than 1 (an open head's p_1..p_K)."""
    probabilities = to_array(probabilities, "probabilities", ndim=2).astype(np.float64)
    labels = to_array(labels, "labels").astype(np.int64)
    check_same_length(probabilities, labels, "probabilities and labels")
    if probabilities.min() < 0 or probabilities.sum(1).max() > 1 + 1e-4:
        raise ValueError("probabilities must be at least 0, and each row must sum to at most 1; are these logits?")
    classes = probabilities.shape[1]
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"labels must be in 0..{classes - 1}, found {labels.min()}..{labels.max()}")
    return probabilities, labels


def nll(probabilities: Numbers, labels: Numbers) -> float:
    """Mean negative log-likelihood of the labels.

    A probability of zero counts as the smallest normal float64.

    Args:
        probabilities: Class probabilities, of shape (N, K). Rows may sum to less than 1 (an open head's p_1..p_K).
        labels: True classes in 0..K-1, of shape (N,).

    Returns:
        The mean of -log p_label; 0 is best.

    Example:
        >>> from moon import nll
        >>> round(nll([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 4)
        0.4904
    """
    probabilities, labels = _checked(probabilities, labels)
    likelihood = probabilities[np.arange(len(labels)), labels]
    return float(-np.log(np.maximum(likelihood, np.finfo(np.float64).tiny)).mean())


def brier(probabilities: Numbers, labels: Numbers) -> float:
    """Brier score: mean squared distance between the probabilities and the one-hot label, summed over all outputs.

    If a row sums to less than 1, the rest is the probability of the unknown output, which counts as one more class that
    is never correct.

    Args:
        probabilities: Class probabilities, of shape (N, K). Rows may sum to less than 1 (an open head's p_1..p_K).
        labels: True classes in 0..K-1, of shape (N,).

    Returns:
        A number in [0, 2]; 0 is best.

    Example:
        >>> from moon import brier
        >>> brier([[0.5, 0.5], [0.25, 0.75]], [0, 1])
        0.3125
    """
    probabilities, labels = _checked(probabilities, labels)
    unknown = np.clip(1 - probabilities.sum(1), 0, None)
    target = np.zeros_like(probabilities)
    target[np.arange(len(labels)), labels] = 1
    return float((((probabilities - target) ** 2).sum(1) + unknown**2).mean())
