"""From a trained network to an answer: thresholds with a guarantee, and a test whether inputs have changed."""

from moon.deploy.drift import DriftMonitor
from moon.deploy.threshold import Threshold, find_threshold, images_needed, p_values

__all__ = ["DriftMonitor", "Threshold", "find_threshold", "images_needed", "p_values"]
