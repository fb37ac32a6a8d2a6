"""What a training step minimises, one method a file."""

from moon.objectives.auto_weight import AutoWeight
from moon.objectives.base import Objective
from moon.objectives.cross_entropy import CrossEntropy
from moon.objectives.moon import Moon, moon_loss

OBJECTIVES: dict[str, type[Objective]] = {"cross-entropy": CrossEntropy, "moon": Moon}

__all__ = ["OBJECTIVES", "AutoWeight", "CrossEntropy", "Moon", "Objective", "moon_loss"]
