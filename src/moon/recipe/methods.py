"""Every method by name: what it is, whose it is, its options and its card, read from the code itself."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any

from moon.recipe import build
from moon.recipe.presets import Preset
from moon.suggest import did_you_mean

_SHARED_CARDS = {"allocation": "allocation", "rates": "rates", "net": "nets", "preset": "presets"}  # one for a kind
_FIRST_LINE = re.compile(r"(?P<title>[^(:]+?)(?: \((?P<paper>[^)]*\d{4}[^)]*)\))?: (?P<line>.+)")


@dataclass(frozen=True)
class Method:
    """One entry of one of the tables."""

    kind: str
    name: str
    title: str
    paper: str
    line: str
    about: str  # formula and rules
    options: dict[str, Any]  # with their defaults
    facts: tuple[str, ...]  # what else it is made of

    @property
    def card(self) -> str:
        return f"docs/methods/{_SHARED_CARDS.get(self.kind, self.name.replace('-', '_'))}.md"


def _method(kind: str, name: str, entry: Any) -> Method:
    if kind == "rates":
        return Method(kind, name, name, "", entry.summary(), inspect.getdoc(type(entry)) or "", {}, ())
    if kind == "preset":
        return Method(kind, name, name, "", entry.line, _made_of(entry), {}, ())
    # A method has a file, whose first line says what it is; functions and nets share one and say it themselves.
    source = inspect.getmodule(entry) if inspect.isclass(entry) else entry
    first = (inspect.getdoc(source) or "").splitlines()[0]
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise ValueError(f"{name}: its first line must be 'Title (Paper Year): what it is', not '{first}'")
    said = getattr(entry, "takes", None)  # objectives say what they are made of
    takes = inspect.signature(entry).parameters if said is None else said()
    options = {key: p.default for key, p in takes.items() if p.default is not p.empty}
    facts = tuple(key for key, p in takes.items() if p.default is p.empty)
    return Method(
        kind, name, found["title"], found["paper"] or "", found["line"].rstrip("."), inspect.getdoc(entry) or "",
        options, facts,
    )  # fmt: skip


def _made_of(preset: Preset) -> str:
    """What stands behind a preset."""
    parts = {"objective": preset.objective} | dict(preset.options) | dict(preset.settings)
    return ", ".join(f"{key} = {value}" for key, value in parts.items())


def methods(kind: str | None = None) -> list[Method]:
    """All of them, or those of one kind."""
    kinds = build.TABLES if kind is None else {kind: build.pick(build.TABLES, kind, "kind")}
    return [_method(kind, name, entry) for kind, table in kinds.items() for name, entry in table.items()]


def find(word: str) -> list[Method]:
    """The methods of this kind, or of this name: `moon` is an objective and also learning rates."""
    if word in build.TABLES:
        return methods(word)
    everything = methods()
    found = [method for method in everything if method.name == word]
    if not found:
        names = [*build.TABLES, *(method.name for method in everything)]
        raise ValueError(f"no method or kind is called '{word}'{did_you_mean(word, names)}; moon methods lists them all")
    return found
