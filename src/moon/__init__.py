"""moon trains sparse neural networks that know what they do not know.

Every public name can be imported from here. A module is imported when one of its names is first used, so `import moon`
itself is cheap. `__init__.pyi` lists the names.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import Any

__version__ = "0.3.0"

_HOMES = {
    alias.name: node.module
    for node in ast.parse(Path(__file__).with_suffix(".pyi").read_text(encoding="utf-8")).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}
_ROOMS = {path.stem for path in Path(__file__).parent.iterdir() if path.suffix == ".py" or path.is_dir()}
__all__ = sorted(_HOMES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"moon.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'moon' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # later accesses bypass this function
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES, *_ROOMS})
