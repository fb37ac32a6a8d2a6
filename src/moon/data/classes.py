"""Classes of a data set: one numbering for all its splits, by name, and which classes have no images."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from moon.data.class_names import class_key
from moon.data.dataset import DataSet
from moon.data.streams import ImageList
from moon.errors import DataError

_log = logging.getLogger(__name__)
_MAX_NAMES = 8  # in one message
Labelled = TypeVar("Labelled", bound=DataSet | ImageList)


def enumerated(names: Sequence[object]) -> str:
    """Return names as text, at most eight of them: "cat, dog and rabbit", "a, b, ... and 92 more"."""
    shown = [str(name) for name in names]
    if len(shown) > _MAX_NAMES:
        return f"{', '.join(shown[:_MAX_NAMES])} and {len(shown) - _MAX_NAMES} more"
    return " and ".join(part for part in (", ".join(shown[:-1]), *shown[-1:]) if part)


def names_of_labels(labels: NDArray, classes: tuple[str, ...]) -> list[str]:
    """Return the names of labels, or their numbers where classes have no names."""
    return [classes[label] if classes else str(label) for label in labels.tolist()]


def same_classes(dataset: Labelled, classes: tuple[str, ...], where: str, reference: str) -> Labelled:
    """Number the classes of a split like those of another split of the same set (the reference), by name.

    Names that differ in their Unicode form only are equal; those of the reference are kept. Without names on both sides
    labels are not changed. A `DataError` if the split has images of a class that the reference does not have.
    """
    if not dataset.classes or not classes:
        if dataset.classes or classes:
            unnamed, named = (reference, where) if dataset.classes else (where, reference)
            _log.warning(
                "%s: its classes have no names, those of %s have; both are matched by number; check that the numbers "
                "agree, or import %s again, with names",
                unnamed, named, unnamed,
            )  # fmt: skip
        return dataset
    if dataset.classes == classes:
        return dataset
    used = np.unique(dataset.labels[dataset.labels >= 0])
    number = {class_key(name): label for label, name in enumerate(classes)}
    names = names_of_labels(used, dataset.classes)
    if extra := [name for name in names if class_key(name) not in number]:
        raise DataError(
            f"{where}: has images of class {enumerated(extra)}, which {reference} does not have (its classes are "
            f"{enumerated(classes)}); add the class to {reference}, or remove these images"
        )
    if rewritten := [ascii(name) for name in names if name not in classes]:
        _log.info("%s: class %s is in %s, in another Unicode form", where, enumerated(rewritten), reference)
    renumbered = np.array([number.get(class_key(name), -1) for name in dataset.classes], np.int64)
    labels = np.where(dataset.labels >= 0, renumbered[dataset.labels], dataset.labels)
    if moved := [
        f"{dataset.classes[label]} {label} -> {renumbered[label]}" for label in used if renumbered[label] != label
    ]:
        _log.info("%s: labels renumbered like those of %s, by class name: %s", where, reference, enumerated(moved))
    if isinstance(dataset, DataSet):
        return dataset._replace(labels=labels, classes=classes)
    return replace(dataset, labels=labels, classes=classes)


def missing_classes(labels: NDArray, num_known: int) -> NDArray[np.int64]:
    """Return the known classes that no image belongs to."""
    return np.setdiff1d(np.arange(num_known), labels)


def warn_of_missing(missing: NDArray[np.int64], classes: tuple[str, ...], num_known: int, where: str) -> None:
    """Log a warning that lists known classes without images, if there are any."""
    if len(missing):
        names, rest = enumerated(names_of_labels(missing, classes)), num_known - len(missing)
        over = f"accuracy is over the other {rest} classes" if rest != 1 else "accuracy is over the other class"
        _log.warning("%s: no image of class %s; %s", where, names, over)


def check_known(labels: NDArray, num_known: int, where: object) -> None:
    """Raise a `DataError` if labels are outside 0..K-1; -1 is diagnosed separately."""
    if unknown := int((labels < 0).sum()):
        raise DataError(
            f"{where}: {unknown:,} of {len(labels):,} images have label -1, which marks images of no known class; a "
            "known set must not contain them: remove them, or put them into a set of their own"
        )
    if (high := labels.max()) >= num_known:
        raise DataError(f"{where}: labels {labels.min()}..{high}; the known classes are 0..{num_known - 1}")
