"""Numbers from arrays. Scores are always "higher is more known"; results are fractions, not percent."""

from moon.metrics.known import accuracy, brier, ece, nll
from moon.metrics.unknown import aupr, auroc, fpr_at_tpr

__all__ = ["accuracy", "aupr", "auroc", "brier", "ece", "fpr_at_tpr", "nll"]
