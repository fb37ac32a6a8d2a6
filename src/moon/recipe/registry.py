"""The tables of names: the built-in methods, those that other packages provide, and those that a script registers.

No other module looks up methods by name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, isabstract, signature
from typing import Any

from moon.detect import Detector
from moon.objectives import compose
from moon.recipe.import_path import imported
from moon.recipe.model_zoo import PACKAGES, net_of_package
from moon.recipe.names import KINDS
from moon.recipe.parameters import Scalar
from moon.sparse import SparseTopology
from moon.sparse.pattern import pattern_of
from moon.suggest import did_you_mean

_log = logging.getLogger(__name__)
_RESERVED = ("all", "auto", "none")  # values of --detector that are not detectors
_FACTS = {  # the parameters that a run fills in
    "objective": ("epochs", "num_known", "num_features", "outliers", "outlier_classes", "teachers"),
    "topology": tuple(signature(SparseTopology).parameters),
    "detector": (),
}


class Registry(Mapping[str, Any]):
    """The methods of one kind by name.

    Methods of other packages are found through the entry-point group of the kind when they are first needed. One that
    cannot be loaded is skipped with a warning.
    """

    def __init__(self, kind: str) -> None:
        self.kind, self._kind, self._registered = kind, KINDS[kind], dict[str, Any]()
        module = import_module(self._kind.module)
        self._builtin: Mapping[str, Any] = getattr(module, self._kind.table)
        self._base = getattr(module, self._kind.base) if self._kind.base else None
        self._classes = {_folded(getattr(entry, "__name__", key)): key for key, entry in self._builtin.items()}

    @cached_property
    def _installed(self) -> dict[str, Any]:
        """What other packages provide."""
        found: dict[str, Any] = {}
        for point in entry_points(group=self._kind.group):
            try:
                self._check(point.name, entry := point.load(), {**self._builtin, **found})
            except Exception as error:  # importing another package may raise anything
                _log.warning("entry point %s = %s is skipped: %s", point.name, point.value, error)
            else:
                found[point.name] = entry
        return found

    def _check(self, name: str, entry: Any, taken: Iterable[str]) -> None:
        what, base = f"{self.kind} '{name}'", self._base
        if not name or {":", "+"} & {*name} or name.split() != [name]:
            raise ValueError(f"'{name}' is not a valid {self.kind} name; use a name without spaces, ':' and '+'")
        if _folded(name) in {*self._classes, *map(_folded, taken)} or (self.kind == "detector" and name in _RESERVED):
            raise ValueError(f"{what} already exists; choose another name")
        if base is None:
            fits, expected = callable(entry), "callable"
        elif self._kind.is_object:
            fits, expected = isinstance(entry, base) and not isinstance(entry, type), f"a {base.__name__} object"
            # A recipe stores the numbers of learning rates, not what a subclass makes of them.
            fits = fits and (self.kind != "rates" or type(entry) is base)
        else:
            fits, expected = isinstance(entry, type) and issubclass(entry, base), f"a subclass of {base.__name__}"
        if not fits:
            raise ValueError(f"{what} must be {expected}, not {entry!r}")
        if isabstract(entry):
            missing = ", ".join(sorted(getattr(entry, "__abstractmethods__")))  # noqa: B009
            raise ValueError(f"{what} does not implement {missing}")
        if self.kind in _FACTS and (unknown := [n for n, p in _own(self.kind, entry).items() if p.default is p.empty]):
            names = ", ".join(unknown)
            raise ValueError(f"{what} requires {names}, which a run does not provide; give defaults")
        if self.kind == "detector":
            _check_fits_on(name, entry)

    def add(self, name: str, entry: Any) -> None:
        """Add an entry; raises a ValueError if the name is taken or the entry is invalid."""
        self._check(name, entry, self)
        self._registered[name] = entry

    def remove(self, name: str) -> None:
        """Remove an entry that `add` added."""
        del self._registered[name]

    def listed(self, name: str) -> str:
        """The key of the entry that a name, perhaps the one of its class, means; a name of no entry as it is."""
        if name in self._builtin:
            return name
        return (self._classes | {_folded(key): key for key in self}).get(_folded(name), name)

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
        return sum(1 for _ in self)

    def is_builtin(self, name: str) -> bool:
        """Whether the entry is part of this package."""
        return name in self._builtin


def _folded(name: str) -> str:
    """A name without what does not distinguish names: `MaxLogit`, `max_logit` and `max-logit` are the same."""
    return name.replace("-", "").replace("_", "").lower()


def _own(kind: str, entry: Any) -> dict[str, Parameter]:
    """The constructor parameters of an objective, topology or detector that a run does not fill in."""
    takes = entry.takes() if kind == "objective" else signature(entry).parameters
    variable = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return {name: p for name, p in takes.items() if name not in _FACTS[kind] and p.kind not in variable}


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


_TABLES = {kind: Registry(kind) for kind in KINDS}


def kinds() -> list[str]:
    """The kinds of methods: objective, topology, detector and so on."""
    return list(_TABLES)


def table(kind: str) -> Registry:
    """The methods of one kind by name."""
    if kind not in _TABLES:
        raise ValueError(f"unknown kind '{kind}'{did_you_mean(kind, _TABLES)}; choose from: {', '.join(_TABLES)}")
    return _TABLES[kind]


def full_name(kind: str, name: Any) -> Any:
    """The name under which a method is listed, for any spelling of it or the name of its class.

    Example:
        >>> from moon.recipe.registry import full_name
        >>> full_name("detector", "MaxLogit"), full_name("objective", "RotPred+Moon")
        ('mls', 'rotpred+moon')
    """
    return "+".join(map(table(kind).listed, name.split("+"))) if isinstance(name, str) else name


def pick(kind: str, name: str) -> Any:
    """Look up the class, function or value of a kind by its name, or by the name of its class.

    For an objective also `OUTER+INNER`, such as "rotpred+moon": OUTER computed around INNER. For a net also an import
    path, such as "mypackage.nets:make", or a net of another package, such as "timm:resnet50". For a pattern also "N:M",
    or "" for none.

    Raises:
        ValueError: If there is none, the message suggests the closest name; or if objectives cannot be composed.
    """
    entries = table(kind)
    called = "learning rates" if kind == "rates" else kind
    if not isinstance(name, str):
        such = f"such as '{next(iter(entries))}', not {name!r}; give your own a name with moon.register"
        raise ValueError(f"{called} must be a name, {such}")
    name = full_name(kind, name)
    if name in entries:
        return entries[name]
    if kind == "pattern" and (not name or ":" in name):
        return pattern_of(name)
    if kind == "net" and name.partition(":")[0] in PACKAGES:
        return net_of_package(name)
    if kind == "net" and ":" in name:
        return imported(kind, name, num_classes=10, in_channels=3)
    if kind == "objective":
        name = next((part for part in name.split("+") if part not in entries), name)
    choices = ", ".join([*entries, *filter(None, [KINDS[kind].more])])
    close = did_you_mean(name, entries)
    # A name that is like no other is probably that of a run, trained where the method was known.
    hint = "" if close else "; one of another package must be installed here, or registered"
    raise ValueError(f"unknown {called} '{name}'{close}; choose from: {choices}{hint}")


def options_of(name: str, kind: str = "objective") -> dict[str, Scalar]:
    """The options of an objective or topology with their defaults: its own parameters that have a scalar default."""
    own = _own(kind, pick(kind, name))
    return {key: p.default for key, p in own.items() if isinstance(p.default, Scalar)}


def arguments_of(function: Any) -> Mapping[str, Parameter]:
    """The arguments of a function or class by name; none if it has no signature, as some of extension modules."""
    try:
        return signature(function).parameters
    except ValueError:
        return {}


def register(kind: str, name: str, entry: Any) -> None:
    """Make a method of your own available by name in the current process, wherever a name of its kind is accepted.

    A package that should always provide it, as on the command line and in worker processes of `moon grid`, declares an
    entry point instead, in the group `moon.detectors`, `moon.objectives`, `moon.topologies`, `moon.allocations`,
    `moon.patterns`, `moon.rates`, `moon.nets` or `moon.presets`. A net needs neither, as its import path, such as
    `mypackage.nets:make`, is a name.

    Args:
        kind: "detector", "objective", "topology", "allocation", "pattern", "rates", "net" or "preset".
        name: The name to use; it must not be taken.
        entry: A subclass of `Detector`, `Objective` or `Topology`; for an allocation a function
            `densities(shapes, sparsity)`; for a net a function `make(num_classes, in_channels) -> nn.Module`; for a
            pattern an object with the methods of `moon.sparse.pattern.Pattern`; for learning rates a `CosineRate`; or a
            `Preset`.

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
