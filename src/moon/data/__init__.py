"""Data: sets of images and labels, their readers, the table of benchmarks, and batches on the device.

A module is imported when one of its names is first used: the table of benchmarks, which the command line needs for its
help, does not wait for torch. `__init__.pyi` lists the names.
"""

from moon.lazy import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
