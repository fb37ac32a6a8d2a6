"""Groups of images that a split must not divide, such as several photos of one object."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from moon.data.dataset import DataSet
from moon.data.limits import read_bytes
from moon.errors import DataError


def group_images(dataset: DataSet, by: str, where: str) -> NDArray[np.str_]:
    """Find the group of each image by the name of its file.

    Args:
        dataset: Images with the names of their files.
        by: A regular expression: the group is what it matches in the path of the image, such as `train/cat/rex_1.jpg`,
            or its first pair of parentheses. Or the path of a .csv file with the columns `file` and `group`, where a
            file may be named by the end of its path.
        where: The set, for messages.

    Returns:
        The group of each image.

    Raises:
        ValueError: The names of the files are not known, an image has no group, or `by` is neither of the two.

    Example:
        >>> import numpy as np
        >>> from moon.data import DataSet
        >>> from moon.data.groups import group_images
        >>> files = np.array(["cat/rex_1.jpg", "cat/rex_2.jpg", "cat/tom_1.jpg"])
        >>> group_images(DataSet(np.zeros((3, 8, 8, 1)), np.zeros(3), files=files), ".*_", "pets").tolist()
        ['cat/rex_', 'cat/rex_', 'cat/tom_']
    """
    if dataset.files is None:
        raise DataError(
            f"{where}: does not say which file each image is from; import the images again (moon data import), or save "
            "their names as the array `files`"
        )
    find = _table(by) if by.endswith(".csv") else _pattern(by)
    found = [find(file) for file in dataset.files.tolist()]
    if lost := [file for file, group in zip(dataset.files, found, strict=True) if group is None]:
        raise ValueError(f"'{by}' names no group for {len(lost):,} of {len(found):,} images, such as {lost[0]}")
    return np.array(found)


def _pattern(text: str) -> Callable[[str], str | None]:
    try:
        pattern = re.compile(text)
    except re.error as error:
        raise ValueError(f"'{text}' is not a regular expression ({error}), nor the name of a .csv file") from None

    def find(file: str) -> str | None:
        match = pattern.search(file)
        return match and match[min(1, pattern.groups)]

    return find


def _table(path: str) -> Callable[[str], str | None]:
    try:
        rows = csv.DictReader(read_bytes(Path(path)).decode("utf-8-sig").splitlines())
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not UTF-8 text ({error})") from error
    if missing := {"file", "group"} - set(rows.fieldnames or ()):
        raise DataError(f"{path}: has no column '{min(missing)}'; it must have the columns file and group")
    groups: dict[str, str] = {}
    for row in rows:
        if groups.setdefault(row["file"], row["group"]) != row["group"]:
            raise DataError(f"{path}: {row['file']} is in two groups, {groups[row['file']]} and {row['group']}")

    def find(file: str) -> str | None:
        parts = PurePosixPath(file).parts
        return next((groups[end] for i in range(len(parts)) if (end := "/".join(parts[i:])) in groups), None)

    return find


def split_off_groups(dataset: DataSet, groups: NDArray, fraction: float) -> tuple[DataSet, DataSet]:
    """Split a data set in two, class by class, as `split_off` does, without dividing a group; return (part, rest).

    Groups are taken in the order of their names, as long as this brings the share of a class closer to `fraction`; at
    least one per class, unless a class would lose all of its images. A group may have images of several classes.
    """
    names, group = np.unique(groups, return_inverse=True)
    classes, label = np.unique(dataset.labels, return_inverse=True)
    counts = np.zeros((len(names), len(classes)), np.int64)  # images of each group and class
    np.add.at(counts, (group, label), 1)
    total, taken, chosen = counts.sum(0), np.zeros(len(classes), np.int64), np.zeros(len(names), bool)
    for k, aim in enumerate(fraction * total):
        members = np.flatnonzero(counts[:, k])
        smallest = members[counts[members, k].argsort(kind="stable")]
        for i, is_needed in [*((i, False) for i in members), *((i, True) for i in smallest)]:
            fits = taken[k] == 0 if is_needed else taken[k] + counts[i, k] / 2 <= aim
            if fits and not chosen[i] and (taken + counts[i] < total)[counts[i] > 0].all():
                chosen[i] = True
                taken += counts[i]
    return dataset.take(chosen[group]), dataset.take(~chosen[group])
