"""Names of classes: which are allowed, and when two are the same."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moon.errors import DataError
from moon.suggest import counted

_SHOWN = 6  # names in the text of a data set


def class_key(name: str) -> str:
    """Return a name in the form in which names are compared: macOS writes letters such as é as two characters."""
    return unicodedata.normalize("NFC", name)


def check_distinct(names: Iterable[str], where: object) -> None:
    """Raise a `DataError` if two classes have the same name, or names that differ in their Unicode form only."""
    found: dict[str, str] = {}
    for name in names:
        if (key := class_key(name)) in found:
            forms = f" in two Unicode forms ({found[key]!a} and {name!a})" if found[key] != name else ""
            remedy = "; rename one, or merge them" if forms else "; names must differ"
            raise DataError(f"{where}: two classes are called '{name}'{forms}{remedy}")
        found[key] = name


def check_known_names(names: Iterable[str], where: object) -> None:
    """Raise a `DataError` if a known class has the name of the answer about images of no known class."""
    if found := next((name for name in names if name.strip().casefold() == "unknown"), None):
        raise DataError(
            f"{where}: a known class is called '{found}', which is also the answer about images of no known class; "
            "give it another name, or, if its images are of no known class, remove it and import them as a set of "
            "their own (moon train --objective outlier-exposure --outliers SET trains with them)"
        )


def checked_names(classes: ArrayLike, labels: NDArray[np.int64], where: object) -> tuple[str, ...]:
    """Return names of classes as a tuple; a `DataError` if there are some, but not a different one for each label."""
    names = np.asarray(classes)
    if names.size == 0:
        return ()
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(f"{where}: classes are {names.dtype} of shape {names.shape}; they must be strings (K,)")
    checked = tuple(str(name) for name in names)
    if not all(name.strip() for name in checked):
        raise DataError(f"{where}: class {[name.strip() for name in checked].index('')} has an empty name")
    check_distinct(checked, where)
    if labels.max() >= len(checked):
        raise DataError(
            f"{where}: label {labels.max()}, but there are only {counted(len(checked), 'name')}; name every class"
        )
    return checked


def described(labels: ArrayLike, classes: Sequence[str]) -> str:
    """Return the range of labels and the first names of classes, for the text of a data set.

    >>> described(np.arange(20), [*"abcdefghijklmnopqrst"]), described([], ())
    ("labels 0 to 19: 'a', 'b', 'c', 'd', 'e', 'f', ... (20 names)", 'no labels')
    """
    labels = np.asarray(labels)
    text = f"labels {labels.min()} to {labels.max()}" if labels.size else "no labels"
    names = ", ".join(map(repr, classes[:_SHOWN])) + (f", ... ({len(classes)} names)" if classes[_SHOWN:] else "")
    return f"{text}: {names}" if names else text
