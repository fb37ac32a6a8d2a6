"""Packages whose names are imported on first use, so that importing the package itself is cheap."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy(package: str, file: str) -> tuple[list[str], Callable[[str], Any], Callable[[], list[str]]]:
    """Make the names that a package's `__init__.pyi` lists available: its `__all__`, `__getattr__` and `__dir__`.

    Type checkers read the same file, so the names are listed once. The package's modules are attributes as well.
    """
    listed = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [node for node in listed if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module or "" for node in imports for alias in node.names}
    modules = {path.stem for path in Path(file).parent.iterdir() if path.suffix == ".py" or path.is_dir()}

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(homes[name]), name)
        setattr(import_module(package), name, value)  # later accesses bypass this function
        return value

    return sorted(homes), find, lambda: sorted({*vars(import_module(package)), *homes, *modules})
