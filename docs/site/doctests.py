"""Shows the `Example:` of a docstring as code: the parser of the site calls that section `Examples:`."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):
    """Renames the section before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
