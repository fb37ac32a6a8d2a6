"""The names that tables and figures show for data sets, trainings, topologies and metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from moon.paper.spec import Measurement

_NAMES = {
    "auroc": "AUROC %", "fpr95": "FPR-95 %", "aupr_in": "AUPR-in %", "ece": "ECE", "ece_scaled": "ECE scaled",
    "accuracy": "accuracy %",
    "time_ratio": "time relative to RigL", "moon": "MOON", "plain": "plain", "without-lm": "MOON w/o LM",
    "without-at-final": "MOON w/o AT (w_f throughout)", "without-at-initial": "MOON w/o AT (w_i throughout)",
    "without-vt": "MOON w/o VT", "moon-logitnorm": "MOON normalised", "rigl": "RigL", "set": "SET",
    "control": "control", "logitnorm": "LogitNorm", "vos": "VOS", "dac": "DAC", "cigl": "CigL",
    "p_unknown_correct": "p_{K+1}, known, correct", "p_unknown_wrong": "p_{K+1}, known, wrong",
    "p_unknown_unknown": "p_{K+1}, unknown", "label-smoothing": "label smoothing", "eow-softmax": "EOW-Softmax",
    "static": "static", "dense": "dense", "cigl-alone": "CigL without vote",
    "mixup": "Mixup", "cifar10": "CIFAR-10", "cifar100": "CIFAR-100", "mnist": "MNIST", "imagenet": "ImageNet",
}  # fmt: skip


def display_name(key: str) -> str:
    """Return the name that readers see for a key, or the key itself; `NAME+vote` is a training with a vote."""
    name, plus, more = key.partition("+")
    return f"{_NAMES.get(name, name)} + {more}" if plus else _NAMES.get(key, key)


def describe(measurement: Measurement, fields: Iterable[str]) -> list[str]:
    """Return the display names of some fields of a measurement, without empty and repeated ones."""
    special: dict[str, Callable[[Any], str]] = {"sparsity": lambda sparsity: percent(sparsity) if sparsity else "dense"}
    names = [special.get(field, display_name)(getattr(measurement, field)) for field in fields]
    return list(dict.fromkeys(name for name in names if name))


def percent(share: float) -> str:
    """Return a share in percent, without trailing zeros."""
    return f"{100 * share:g}%"
