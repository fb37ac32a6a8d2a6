"""Detectors: they score how known an input is. One file per detector; a higher score always means more known."""

from moon.detect.ash import Ash
from moon.detect.base import Detector
from moon.detect.dice import Dice
from moon.detect.energy import Energy
from moon.detect.entropy import Entropy
from moon.detect.fdbd import Fdbd
from moon.detect.fisher import Fisher
from moon.detect.gen import Gen
from moon.detect.gradnorm import GradNorm
from moon.detect.klm import Klm
from moon.detect.knn import Knn
from moon.detect.layers import Layers
from moon.detect.mahalanobis import Mahalanobis
from moon.detect.max_logit import MaxLogit
from moon.detect.msp import Msp
from moon.detect.nnguide import NnGuide
from moon.detect.odin import Odin
from moon.detect.openmax import OpenMax
from moon.detect.react import React
from moon.detect.rmds import Rmds
from moon.detect.rotpred import RotPredScore
from moon.detect.scale import Scale
from moon.detect.scaled import Scaled
from moon.detect.she import She
from moon.detect.temperature_scaling import TemperatureScaling
from moon.detect.tempscale import TempScale
from moon.detect.unknown import Unknown
from moon.detect.vim import Vim

DETECTORS: dict[str, type[Detector]] = {
    "msp": Msp,
    "odin": Odin,
    "ebo": Energy,
    "knn": Knn,
    "klm": Klm,
    "mls": MaxLogit,
    "unknown": Unknown,
    "entropy": Entropy,
    "gen": Gen,
    "mds": Mahalanobis,
    "rmds": Rmds,
    "vim": Vim,
    "react": React,
    "dice": Dice,
    "ash": Ash,
    "scale": Scale,
    "she": She,
    "nnguide": NnGuide,
    "fdbd": Fdbd,
    "gradnorm": GradNorm,
    "openmax": OpenMax,
    "tempscale": TempScale,
    "fisher": Fisher,
    "rotpred": RotPredScore,
    "layers": Layers,
}

# Each class may be called by its key, too; Msp, Knn and so on are.
Ebo = Energy
Mds = Mahalanobis
Mls = MaxLogit

__all__ = [
    "DETECTORS", "Ash", "Detector", "Dice", "Ebo", "Energy", "Entropy", "Fdbd", "Fisher", "Gen", "GradNorm", "Klm",
    "Knn", "Layers", "Mahalanobis", "MaxLogit", "Mds", "Mls", "Msp", "NnGuide", "Odin", "OpenMax", "React", "Rmds",
    "RotPredScore", "Scale", "Scaled", "She", "TempScale", "TemperatureScaling", "Unknown", "Vim",
]  # fmt: skip
