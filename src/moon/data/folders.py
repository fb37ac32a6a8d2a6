"""Folders of images: which are classes, and which are splits that contain classes. Links must stay inside the root."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from moon.data.dataset import AnyPath
from moon.errors import DataError

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
SPLITS = ("train", "val", "test")
_SPLITS = {
    "train": "train", "training": "train", "val": "val", "valid": "val", "validation": "val", "test": "test",
    "testing": "test", "train_set": "train", "training_set": "train", "val_set": "val", "validation_set": "val",
    "dev": "val", "dev_set": "val", "eval": "val", "test_set": "test", "testing_set": "test",
}  # fmt: skip


class SplitFolders(NamedTuple):
    """The splits in a folder.

    Args:
        splits: The folder of each split, which contains class folders; empty if the folder contains no splits.
        ignored: Names of other folders with images beside the splits.
    """

    splits: dict[str, Path]
    ignored: list[str]


class Inside:
    """Tells whether paths, with all links followed, are inside a folder. The folder itself may be a link.

    Args:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._known: dict[str, bool] = {}  # lists have many images in few folders

    def __call__(self, path: Path) -> bool:
        folder, name = os.path.split(path)
        try:
            if name in ("", ".", "..") or os.path.islink(path):
                return self._contains(path)
            if folder not in self._known:
                self._known[folder] = self._contains(folder)
            return self._known[folder]
        except ValueError:  # a null character in the path
            return False

    def _contains(self, path: Path | str) -> bool:
        return os.path.commonpath((os.path.realpath(path), self._root)) == self._root


def check_link(path: Path, root: Path) -> None:
    """Raise a `DataError` if a path is a link that leads out of a folder, or nowhere."""
    if not path.is_symlink():
        return
    target = os.path.realpath(path)
    if not Inside(root)(path):
        raise DataError(
            f"{path}: is a link to {target}, outside {root}; such links are not followed: copy the data, or import "
            "from the folder that contains them"
        )
    if not os.path.exists(target):
        raise DataError(f"{path}: is a link to {target}, which does not exist")


def subfolders(folder: Path, root: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; a link must stay inside the root and exist."""
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    for path in visible:
        if path.is_dir() or not path.exists():  # a link to nothing might have been a class
            check_link(path, root)
    return [path for path in visible if path.is_dir()]


def files_in(folder: Path, root: Path, ignored: list[Path] | None = None) -> Iterator[Path]:
    """Yield what is in a folder and its subfolders, except for folders, in any order; nothing is opened.

    Links to folders are not followed but added to `ignored`; one that leads out of the root is a `DataError`.
    """
    waiting = [folder]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    path = Path(entry.path)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    elif entry.is_symlink() and entry.is_dir():
                        check_link(path, root)
                        if ignored is not None:
                            ignored.append(path)
                    else:
                        yield path
        except OSError as error:
            raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None


def is_image(path: Path) -> bool:
    """Return whether a path has the suffix of an image file and is not hidden."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def find_splits(source: AnyPath, split: str | None = None, root: AnyPath | None = None) -> SplitFolders:
    """Find splits in a folder: train, val (valid, validation) and test (testing) that contain class folders.

    A single folder of that name that contains images, beside other folders with images, is a class: bus, car, train.

    Args:
        source: The folder.
        split: The only split that is needed; the others are then not checked.
        root: The folder that links must not lead out of; default: the source.

    Returns:
        The folders of the splits.

    Raises:
        DataError: The layout is ambiguous: a split has images but no class folders, two folders are the same split, or
            splits are below another folder. Or a folder is a link that leads out of the root.
    """
    source, root = Path(source), Path(root or source)
    if not source.is_dir():
        return SplitFolders({}, [])
    folders = [folder for folder in subfolders(source, root) if _has_images(folder, root)]
    named: dict[str, Path] = {}
    for folder in folders:
        if found := _SPLITS.get(folder.name.lower()):
            if found in named:
                raise DataError(f"{source}: {named[found].name} and {folder.name} are the same split; remove one")
            named[found] = folder
    others = [folder.name for folder in folders if folder not in named.values()]
    flat = {
        found: folder
        for found, folder in named.items()
        if not any(_has_images(path, root) for path in subfolders(folder, root))
    }
    if not named or (len(named) == len(flat) == 1 and others):
        for folder in folders:
            _check_no_splits_inside(source, folder, root)
        return SplitFolders({}, [])
    for found, folder in flat.items():
        if split in (None, found):
            remedy = "" if len(flat) == len(named) else ", or import one of the other splits alone"
            raise DataError(
                f"{folder}: contains images but no class folders; expected {folder.name}/<class>/<image>{remedy}"
            )
    return SplitFolders({found: named[found] for found in SPLITS if found in named and found not in flat}, others)


def _has_images(folder: Path, root: Path) -> bool:
    return any(map(is_image, files_in(folder, root)))


def _check_no_splits_inside(source: Path, folder: Path, root: Path) -> None:
    """Raise a `DataError` if a class folder contains splits, which would be merged into one."""
    inside = [path for path in subfolders(folder, root) if path.name.lower() in _SPLITS and _has_images(path, root)]
    if {"train"} < {_SPLITS[path.name.lower()] for path in inside}:
        names = " and ".join(path.name for path in inside)
        remedy = f"; import {folder}" if any(subfolders(path, root) for path in inside) else ""
        raise DataError(
            f"{folder}: contains the splits {names}; expected {source.name}/<split>/<class>/<image>{remedy}"
        )
