"""Training objectives: what a step minimises, one method per file."""

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective, at_least_float32
from moon.objectives.cigl import CigL
from moon.objectives.compose import compose
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.dac import Dac
from moon.objectives.distill import Distill, Teacher
from moon.objectives.eow_softmax import EowSoftmax
from moon.objectives.epoch import DeviceEpoch, epoch_number
from moon.objectives.hod import Hod
from moon.objectives.label_smoothing import LabelSmoothing
from moon.objectives.logitnorm import LogitNorm
from moon.objectives.mixup import Mixup
from moon.objectives.models import View, check_open, open_logits
from moon.objectives.moon import Moon, moon_loss
from moon.objectives.moon_logitnorm import MoonLogitNorm
from moon.objectives.outlier_exposure import OutlierExposure
from moon.objectives.regmixup import RegMixup
from moon.objectives.rotpred import RotPred
from moon.objectives.t2fnorm import T2FNorm
from moon.objectives.vos import Vos

OBJECTIVES: dict[str, type[Objective]] = {
    "cross-entropy": CrossEntropy,
    "moon": Moon,
    "moon-logitnorm": MoonLogitNorm,
    "logitnorm": LogitNorm,
    "t2fnorm": T2FNorm,
    "rotpred": RotPred,
    "distill": Distill,
    "vos": Vos,
    "dac": Dac,
    "mixup": Mixup,
    "regmixup": RegMixup,
    "label-smoothing": LabelSmoothing,
    "eow-softmax": EowSoftmax,
    "cigl": CigL,
    "outlier-exposure": OutlierExposure,
    "hod": Hod,
}

__all__ = [
    "OBJECTIVES", "AutoWeight", "CigL", "CrossEntropy", "Dac", "DeviceEpoch", "Distill", "EowSoftmax", "Hod",
    "LabelSmoothing", "LogitNorm", "Mixup", "Moon", "MoonLogitNorm", "Objective", "OutlierExposure", "RegMixup",
    "RotPred", "T2FNorm", "Teacher", "View", "Vos", "at_least_float32", "check_open", "compose", "epoch_number",
    "moon_loss", "open_logits",
]  # fmt: skip
