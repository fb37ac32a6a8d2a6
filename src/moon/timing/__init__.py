"""What `moon bench` measures: the time of training steps, of scoring, and of inference on a CPU."""

from moon.timing.contenders import OURS, versions
from moon.timing.kernels import profile_steps
from moon.timing.limits import step_limits
from moon.timing.predict import benchmark_for, machine, time_predictions
from moon.timing.scores import time_scores
from moon.timing.steps import BASE, LOOPS, noise, time_steps

__all__ = [
    "BASE",
    "LOOPS",
    "OURS",
    "benchmark_for",
    "machine",
    "noise",
    "profile_steps",
    "step_limits",
    "time_predictions",
    "time_scores",
    "time_steps",
    "versions",
]
