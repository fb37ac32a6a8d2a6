"""moon trains sparse neural networks that know what they do not know."""

from moon.detect import Detector, Energy, Klm, Knn, MaxLogit, Msp, Odin, Unknown
from moon.evidence import Evidence, OpenHead, look, open_head, read
from moon.metrics import accuracy, aupr, auroc, brier, ece, fpr_at_tpr, nll
from moon.nets import lenet, resnet18, resnet50
from moon.objectives import AutoWeight, CrossEntropy, LogitNorm, Moon, MoonLogitNorm, Objective, moon_loss
from moon.sparse import SET, Dense, DropSchedule, NOfM, RigL, SparseTopology, Static, erk, uniform
from moon.training import WeightVote

__version__ = "0.2.0"

__all__ = [
    "SET", "AutoWeight", "CrossEntropy", "Dense", "Detector", "DropSchedule", "Energy", "Evidence", "Klm", "Knn",
    "LogitNorm", "MaxLogit", "Moon", "MoonLogitNorm", "Msp", "NOfM", "Objective", "Odin", "OpenHead", "RigL",
    "SparseTopology", "Static", "Unknown", "WeightVote", "accuracy", "aupr", "auroc", "brier", "ece", "erk",
    "fpr_at_tpr", "lenet", "look", "moon_loss", "nll", "open_head", "read", "resnet18", "resnet50", "uniform",
]  # fmt: skip
