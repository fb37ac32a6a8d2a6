"""What `moon bench` measures: the time of training steps and of scoring."""

from moon.timing.limits import step_limits
from moon.timing.scores import time_scores
from moon.timing.steps import BASE, noise, time_steps

__all__ = ["BASE", "noise", "step_limits", "time_scores", "time_steps"]
