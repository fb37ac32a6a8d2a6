"""What `moon methods` lists: every method with its paper, options and card, read from the code itself."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass, replace
from typing import Any

from moon.recipe.names import KINDS
from moon.recipe.presets import Preset
from moon.recipe.registry import full_name, kinds, options_of, table
from moon.recipe.variants import Variant
from moon.suggest import did_you_mean

_SCALES = {
    "": "",
    "scaled": "\n\nscaled: all logits are divided by the temperature fitted on validation images.",
    "unscaled": "\n\nunscaled: logits are not divided by a fitted temperature, whatever the objective.",
}
_SECTIONS = re.compile(r"(?:^|\n\n)(?:Args|Attributes|Raises|Example):")
_FIRST_LINE = re.compile(r"(?P<title>[^(:]+?)(?: \((?P<paper>[^)]*\d{4}[^)]*)\))?: (?P<summary>.+)")


@dataclass(frozen=True)
class Method:
    """One entry of a table of methods."""

    kind: str
    name: str
    title: str
    paper: str
    summary: str
    about: str  # formula and rules
    options: dict[str, Any]  # with their defaults
    facts: tuple[str, ...]  # what the run provides
    source: str  # the card, or the module of a method of another package
    unset: tuple[str, ...] = ()  # about options whose default is None


def card_of(kind: str, name: str) -> str:
    """The card of a built-in method: `docs/methods/<name>.md`, with `_` for `-` as in the names of modules.

    >>> card_of("detector", "nearest-mean")
    'docs/methods/nearest_mean.md'
    """
    return f"docs/methods/{KINDS[kind].card or name.replace('-', '_')}.md"


def _method(kind: str, name: str, entry: Any) -> Method:
    card = card_of(kind, name)
    if KINDS[kind].is_object:
        text = re.split(_SECTIONS, inspect.getdoc(type(entry)) or "")[0]
        first, _, rest = text.partition("\n")
        summary, about = {
            "rates": lambda: (entry.summary(), text),
            "preset": lambda: (entry.summary, _contents(entry)),
            "pattern": lambda: (first.rstrip("."), rest.strip()),
        }[kind]()
        return Method(kind, name, name, "", summary or "no description", about, {}, (), card)
    takes = entry.takes() if hasattr(entry, "takes") else inspect.signature(entry).parameters
    options = {key: p.default for key, p in takes.items() if p.default is not p.empty}
    if kind == "objective":
        options = options_of(name)
    facts = tuple(key for key, p in takes.items() if p.default is p.empty)
    text = inspect.cleandoc(entry.__doc__ or "") if inspect.isclass(entry) else inspect.getdoc(entry)  # not inherited
    about = re.split(_SECTIONS, text or "")[0]
    if not table(kind).is_builtin(name):  # from another package, which need not follow our conventions
        title = getattr(entry, "__qualname__", type(entry).__name__)  # of a functools.partial its class
        first, _, about = about.partition("\n")
        summary = first.rstrip(".") or f"no description ({entry.__module__}.{title} has no docstring)"
        return Method(kind, name, title, "", summary, about.strip(), options, facts, entry.__module__)
    # The first line of a class's module describes it. Functions share a module, so their own first line is used.
    first = (inspect.getdoc(inspect.getmodule(entry) if inspect.isclass(entry) else entry) or "").splitlines()[0]
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise ValueError(f"{name}: its first line must be 'Title (Paper Year): what it is', not '{first}'")
    title, paper, summary = found["title"], found["paper"] or "", found["summary"].rstrip(".")
    unset = [
        re.search(rf"^ {{4}}{key}: .*(?:\n {{8}}.*)*", text or "", re.M) for key, x in options.items() if x is None
    ]
    return Method(
        kind, name, title, paper, summary, about, options, facts, card,
        tuple(" ".join(found[0].split()) for found in unset if found),
    )  # fmt: skip


def _contents(preset: Preset) -> str:
    """What a preset sets."""
    parts = {"objective": preset.objective} | dict(preset.options) | dict(preset.settings)
    return ", ".join(f"{key} = {value}" for key, value in parts.items())


def methods(kind: str | None = None) -> list[Method]:
    """All methods, or those of one kind."""
    return [_method(one, name, entry) for one in ([kind] if kind else kinds()) for name, entry in table(one).items()]


def find(name: str) -> list[Method]:
    """The methods of this kind or name; `moon`, for example, names an objective and a learning-rate schedule.

    A detector may have variants, as `ebo:scaled`.
    """
    if name in kinds():
        return methods(name)
    if ":" in name and full_name("detector", name.partition(":")[0]) in table("detector"):
        variant = Variant.of(name)
        given = ({"released": True} if variant.is_released else {}) | (
            {"parts": variant.parts} if variant.parts else {}
        )
        method = _method("detector", variant.key, table("detector")[variant.key])
        options = method.options | given | dict(variant.options)
        return [replace(method, name=name, about=method.about + _SCALES[variant.scale], options=options)]
    everything = methods()
    found = [method for method in everything if method.name == full_name(method.kind, name)]
    if not found:
        names = [*kinds(), *(method.name for method in everything)]
        raise ValueError(f"there is no method or kind '{name}'{did_you_mean(name, names)}; moon methods lists them all")
    return found
