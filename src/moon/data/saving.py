"""Write the splits of a set into a data root, without overwriting other images or mixing up classes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import NamedTuple

import numpy as np

from moon.data.benchmarks import BENCHMARKS
from moon.data.class_names import check_known_names, class_key
from moon.data.classes import enumerated, missing_classes, same_classes, warn_of_missing
from moon.data.dataset import (
    AnyPath,
    DataSet,
    check_name,
    check_root,
    load,
    load_classes,
    load_labels,
    path_of,
    save,
)
from moon.data.embedded import EMBEDDED_SPLITS
from moon.data.folders import SPLITS
from moon.files import check_writable

_log = logging.getLogger(__name__)


class SavedSplit(NamedTuple):
    """A split under the data root, after `import_set`, `import_splits` or `hold_out`.

    Args:
        path: Its file.
        dataset: Its contents.
        is_new: Whether the file was written; False if it already existed with the same images.
    """

    path: Path
    dataset: DataSet
    is_new: bool


def check_target(root: AnyPath, name: str) -> None:
    """Raise a ValueError if a set of this name cannot be written under the data root."""
    check_new_name(name)
    check_root(root)
    check_writable(Path(root) / name, "choose another data root (data)")


def check_new_name(name: str) -> None:
    """Raise a ValueError for the names of sets that are not read from the data root."""
    check_name(name)
    if name in BENCHMARKS and BENCHMARKS[name].lists:
        raise ValueError(f"'{name}' is read from OpenOOD's image lists; choose another name")
    if name in EMBEDDED_SPLITS:
        raise ValueError(f"'{name}' is the name of an embedded set; choose another name")


def save_all(datasets: dict[str, DataSet], root: AnyPath, name: str, replace: bool) -> list[SavedSplit]:
    """Save splits of a set with the classes of its training split; all are checked before one is saved."""
    if train := datasets.get("train"):
        classes = train.classes
        check_known_names(classes, f"{name}/train")
        _warn_of_other_classes(root, name, classes, [split for split in SPLITS if split not in datasets])
    else:
        classes = load_classes(root, name, "train") if path_of(root, name, "train").exists() else None
    for split, dataset in datasets.items():
        if split != "train" and classes is not None:
            where = f"{name}/{split}"
            datasets[split] = dataset = same_classes(dataset, classes, where, f"{name}/train")
            warn_of_missing(missing_classes(dataset.labels, len(classes)), classes, len(classes), where)
    saved = [
        SavedSplit(path_of(root, name, split), dataset, _is_new(dataset, root, name, split, replace))
        for split, dataset in datasets.items()
    ]
    for split, (_, dataset, is_new) in zip(datasets, saved, strict=True):
        if is_new:
            save(dataset, root, name, split)
    return saved


def _is_new(dataset: DataSet, root: AnyPath, name: str, split: str, replace: bool) -> bool:
    """Whether a split must be written; raise a ValueError if other images would be overwritten without `replace`."""
    path = path_of(root, name, split)
    if replace or not path.exists():
        return True
    existing = load(root, name, split)
    if existing.digest() != dataset.digest():
        raise ValueError(f"{path}: exists with other images; choose another name, or replace it (replace)")
    if existing.classes and [*map(class_key, existing.classes)] != [*map(class_key, dataset.classes)]:
        raise ValueError(f"{path}: exists with other names of classes; choose another name, or replace it (replace)")
    lacks_files = existing.files is None and dataset.files is not None
    return lacks_files or (not existing.classes and bool(dataset.classes))  # names are added to a split that has none


def _warn_of_other_classes(root: AnyPath, name: str, classes: tuple[str, ...], splits: list[str]) -> None:
    """Log a warning for each existing split that has images of classes other than those of a new training split."""
    for split in splits:
        if not classes or not path_of(root, name, split).exists():
            continue
        names, labels = load_classes(root, name, split), np.unique(load_labels(root, name, split))
        used = [names[label] for label in labels if 0 <= label < len(names)]
        extra = [name for name in used if class_key(name) not in {*map(class_key, classes)}]
        if extra:
            _log.warning(
                "%s/%s: has images of class %s, which the new training split does not have; import it again",
                name, split, enumerated(extra),
            )  # fmt: skip
