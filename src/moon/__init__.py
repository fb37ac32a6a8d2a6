"""moon trains sparse neural networks that know what they do not know.

Every public name can be imported from here. A module is imported when one of its names is first used, so `import moon`
itself is cheap. `__init__.pyi` lists the names.
"""

from moon.lazy import lazy

__version__ = "0.3.0"

__all__, __getattr__, __dir__ = lazy(__name__, __file__)  # pyright: ignore[reportUnsupportedDunderAll]
