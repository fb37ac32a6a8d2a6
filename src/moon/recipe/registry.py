"""The tables of names: the built-in methods, those that other packages provide, and those that a script registers.

No other module looks up methods by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import entry_points
from inspect import Parameter, isabstract, signature
from typing import Any

from moon.detect import DETECTORS, Detector
from moon.nets import NETS
from moon.objectives import OBJECTIVES, Objective, compose
from moon.recipe.import_path import imported
from moon.recipe.model_zoo import PACKAGES, net_of_package
from moon.recipe.names import group_of
from moon.recipe.presets import PRESETS, RATES
from moon.sparse import ALLOCATIONS, TOPOLOGIES, Topology
from moon.suggest import did_you_mean

_log = logging.getLogger(__name__)
_OTHER_NETS = ", timm:NAME, torchvision:NAME, openood:NAME, or an import path such as package.module:function"
_RESERVED = ("all", "auto", "none")  # values of --detector that are not detectors
# What a run provides to objectives.
_FACTS = ("epochs", "num_known", "num_features", "outliers", "outlier_classes", "teachers")


class Registry(Mapping[str, Any]):
    """The methods of one kind by name.

    Methods of other packages are found through the entry-point group `moon.<kind>s` when they are first needed. One
    that cannot be loaded is skipped with a warning.

    Args:
        kind: The kind of the entries, such as "detector".
        builtin: The entries of this package.
        base: The class that every entry must be a subclass of; None accepts any callable.
    """

    def __init__(self, kind: str, builtin: Mapping[str, Any], base: type | None = None) -> None:
        self.kind, self.base = kind, base
        self.group = group_of(kind)  # "" for kinds that other packages cannot extend
        self._builtin = builtin
        self._registered: dict[str, Any] = {}

    @cached_property
    def _installed(self) -> dict[str, Any]:
        """What other packages provide."""
        found: dict[str, Any] = {}
        for point in entry_points(group=self.group) if self.group else ():
            try:
                self._check(point.name, entry := point.load(), {**self._builtin, **found})
            except Exception as error:  # importing another package may raise anything
                _log.warning("entry point %s = %s is skipped: %s", point.name, point.value, error)
            else:
                found[point.name] = entry
        return found

    def _check(self, name: str, entry: Any, taken: Mapping[str, Any]) -> None:
        if not self.group:
            raise ValueError(f"{self.kind} entries cannot be registered; kinds that can: {', '.join(_extensible())}")
        if not name or {":", "+"} & {*name} or name.split() != [name]:
            raise ValueError(f"'{name}' is not a valid {self.kind} name; use a name without spaces, ':' and '+'")
        if name in taken or (self.kind == "detector" and name in _RESERVED):
            raise ValueError(f"{self.kind} '{name}' already exists; choose another name")
        if self.base is None and not callable(entry):
            raise ValueError(f"{self.kind} '{name}' must be callable, not {entry!r}")
        if self.base is not None and not (isinstance(entry, type) and issubclass(entry, self.base)):
            raise ValueError(f"{self.kind} '{name}' must be a subclass of {self.base.__name__}, not {entry!r}")
        if isabstract(entry):
            missing = ", ".join(sorted(getattr(entry, "__abstractmethods__")))  # noqa: B009
            raise ValueError(f"{self.kind} '{name}' does not implement {missing}")
        if unknown := self._unknown_arguments(entry):
            names = ", ".join(unknown)
            raise ValueError(f"{self.kind} '{name}' requires {names}, which a run does not provide; give defaults")
        if self.kind == "detector":
            _check_fits_on(name, entry)

    def _unknown_arguments(self, entry: Any) -> list[str]:
        """The required constructor arguments of a detector or objective that a run cannot provide."""
        if self.kind not in ("detector", "objective"):
            return []
        takes = entry.takes() if self.kind == "objective" else signature(entry).parameters
        skipped = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        return [n for n, p in takes.items() if p.default is p.empty and p.kind not in skipped and n not in _FACTS]

    def add(self, name: str, entry: Any) -> None:
        """Add an entry; raises a ValueError if the name is taken or the entry is invalid."""
        self._check(name, entry, self)
        self._registered[name] = entry

    def remove(self, name: str) -> None:
        """Remove an entry that `add` added."""
        del self._registered[name]

    def __getitem__(self, name: str) -> Any:
        for table in (self._builtin, self._registered, self._installed):
            if name in table:
                return table[name]
        outer, plus, inner = name.partition("+")
        if plus and self.kind == "objective":  # such as rotpred+moon; they can be nested
            return compose(self[outer], self[inner])
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter({**self._builtin, **self._installed, **self._registered})

    def __len__(self) -> int:
        return len(self._builtin) + len(self._installed) + len(self._registered)

    def is_builtin(self, name: str) -> bool:
        """Whether the entry is part of this package."""
        return name in self._builtin


def _check_fits_on(name: str, detector: Any) -> None:
    """Raise a ValueError if `fits_on` of a detector is wrong; a property depends on the detector's options."""
    fits_on, splits = detector.fits_on, ("nothing", "train", "validation", "both")
    if not isinstance(fits_on, str):
        return
    if fits_on not in splits:
        raise ValueError(f"detector '{name}': fits_on must be one of {', '.join(splits)}, not {fits_on!r}")
    if fits_on == "nothing" and detector.fit is not Detector.fit:
        raise ValueError(
            f"detector '{name}' overrides fit, which is never called because fits_on is \"nothing\"; set "
            'fits_on = "train", "validation" or "both"'
        )


_TABLES = {
    registry.kind: registry
    for registry in (
        Registry("objective", OBJECTIVES, Objective),
        Registry("topology", TOPOLOGIES, Topology),
        Registry("allocation", ALLOCATIONS),
        Registry("rates", RATES),
        Registry("detector", DETECTORS, Detector),
        Registry("net", NETS),
        Registry("preset", PRESETS),
    )
}


def _extensible() -> list[str]:
    return [kind for kind, registry in _TABLES.items() if registry.group]


def kinds() -> list[str]:
    """The kinds of methods: objective, topology, detector and so on."""
    return list(_TABLES)


def table(kind: str) -> Registry:
    """The methods of one kind by name.

    Raises:
        ValueError: If there is no such kind.
    """
    if kind not in _TABLES:
        raise ValueError(f"unknown kind '{kind}'{did_you_mean(kind, _TABLES)}; choose from: {', '.join(_TABLES)}")
    return _TABLES[kind]


def pick(kind: str, name: str) -> Any:
    """Look up a method.

    Args:
        kind: One of `kinds()`.
        name: The name of the method. For an objective also `OUTER+INNER`, such as "rotpred+moon": OUTER computed
            around INNER. For a net also an import path, such as "mypackage.nets:make", or a net of another package,
            such as "timm:resnet50".

    Returns:
        The class, function or value of that name.

    Raises:
        ValueError: If there is none, the message suggests the closest name; or if objectives cannot be composed.
    """
    entries = table(kind)
    called = "learning rates" if kind == "rates" else kind
    if not isinstance(name, str):
        own = "; give your own a name with moon.register" if entries.group else ""
        raise ValueError(f"{called} must be a name, such as '{next(iter(entries))}', not {name!r}{own}")
    if name in entries:
        return entries[name]
    if kind == "net" and name.partition(":")[0] in PACKAGES:
        return net_of_package(name)
    if kind == "net" and ":" in name:
        return imported(kind, name, num_classes=10, in_channels=3)
    if kind == "objective":
        name = next((part for part in name.split("+") if part not in entries), name)
    choices = ", ".join(entries) + (_OTHER_NETS if kind == "net" else "")
    close = did_you_mean(name, entries)
    # A name that is like no other is probably that of a run, trained where the method was known.
    hint = "" if close or not entries.group else "; one of another package must be installed here, or registered"
    raise ValueError(f"unknown {called} '{name}'{close}; choose from: {choices}{hint}")


def arguments_of(function: Any) -> Mapping[str, Parameter]:
    """The arguments of a function or class by name; none if it has no signature, as some of extension modules."""
    try:
        return signature(function).parameters
    except ValueError:
        return {}


def register(kind: str, name: str, entry: Any) -> None:
    """Make a custom detector, objective, topology or net available by name in the current process.

    `make_recipe`, `score_run`, `moon methods` and the other commands then accept it. A package that should always
    provide it declares an entry point instead, in the group `moon.detectors`, `moon.objectives`, `moon.topologies` or
    `moon.nets`; worker processes of `moon grid` see entry points only. A net needs neither: its import path, such as
    `net="mypackage.nets:make"`, is accepted as its name.

    Args:
        kind: "detector", "objective", "topology" or "net".
        name: The name to use; it must not be taken.
        entry: A subclass of `Detector`, `Objective` or `Topology`; for a net a function
            `make(num_classes, in_channels) -> nn.Module`.

    Raises:
        ValueError: If the name is taken or the entry is of the wrong type.

    Example:
        >>> import moon
        >>> class Spread(moon.Detector):
        ...     def score(self, evidence):
        ...         return evidence.known_logits.std(1)
        >>> moon.register("detector", "spread", Spread)
        >>> moon.unregister("detector", "spread")
    """
    table(kind).add(name, entry)


def unregister(kind: str, name: str) -> None:
    """Undo `register`.

    Args:
        kind: As given to `register`.
        name: As given to `register`.

    Raises:
        ValueError: If no entry of that name was registered.

    Example:
        See `register`.
    """
    try:
        table(kind).remove(name)
    except KeyError:
        raise ValueError(f"no {kind} '{name}' was registered") from None
