"""From a trained network to an answer: one file, a threshold with a guarantee, and a test whether inputs have changed.

Thresholds and the test need no PyTorch; a module is imported when one of its names is first used.
"""

from moon.lazy import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
