"""How known an input is, one detector a file; higher is more known, always."""

from moon.detect.base import Detector
from moon.detect.energy import Energy
from moon.detect.klm import Klm
from moon.detect.knn import Knn
from moon.detect.max_logit import MaxLogit
from moon.detect.msp import Msp
from moon.detect.odin import Odin
from moon.detect.unknown import Unknown

DETECTORS: dict[str, type[Detector]] = {
    "msp": Msp,
    "odin": Odin,
    "ebo": Energy,
    "knn": Knn,
    "klm": Klm,
    "mls": MaxLogit,
    "unknown": Unknown,
}

__all__ = ["DETECTORS", "Detector", "Energy", "Klm", "Knn", "MaxLogit", "Msp", "Odin", "Unknown"]
