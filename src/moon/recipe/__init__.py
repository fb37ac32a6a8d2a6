"""The description of a run: a frozen recipe, the tables of names, and how names become objects.

A module is imported when one of its names is first used: `PARAMETERS`, which the command line needs for its help, does
not wait for torch. `__init__.pyi` lists the names.
"""

from moon.lazy import lazy

__all__, __getattr__, __dir__ = lazy(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
