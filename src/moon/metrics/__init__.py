"""Metrics of classification, calibration and detection, and the statistics to compare them.

Scores are always "higher means more known". Results are fractions, not percentages.
"""

from moon.metrics.classification import accuracy, brier, ece, nll
from moon.metrics.detection import aupr, auroc, fpr_at_tpr
from moon.metrics.statistics import auroc_difference, auroc_interval, bootstrap, holm, interval, paired_test, verdict

__all__ = [
    "accuracy", "aupr", "auroc", "auroc_difference", "auroc_interval", "bootstrap", "brier", "ece", "fpr_at_tpr",
    "holm", "interval", "nll", "paired_test", "verdict",
]  # fmt: skip
