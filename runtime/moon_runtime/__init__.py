"""Runs sparse networks on a CPU, without PyTorch: a `.moon` file in, answers out.

`load("digits.moon")(images)` says for each image a class or "unknown"; `Network("digits.moon")(images)["logits"]` are
the logits of a batch of normalised float32 images.
"""

from moon_runtime.answers import Answer, Answers
from moon_runtime.classifier import Classifier, load
from moon_runtime.drift import DriftMonitor
from moon_runtime.images import ImageError, read_image
from moon_runtime.network import Network, NetworkError

__version__ = "0.3.0"
__all__ = [
    "Answer", "Answers", "Classifier", "DriftMonitor", "ImageError", "Network", "NetworkError", "load", "read_image",
]  # fmt: skip
