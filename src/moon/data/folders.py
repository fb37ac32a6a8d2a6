"""Folders of images: which are classes, and which are splits that contain classes."""

from __future__ import annotations

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


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones."""
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def is_image(path: Path) -> bool:
    """Return whether a path has the suffix of an image file and is not hidden."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".")


def find_splits(source: AnyPath, split: str | None = None) -> SplitFolders:
    """Find splits in a folder: train, val (valid, validation) and test (testing) that contain class folders.

    A single folder of that name that contains images, beside other folders with images, is a class: bus, car, train.

    Args:
        source: The folder.
        split: The only split that is needed; the others are then not checked.

    Returns:
        The folders of the splits.

    Raises:
        DataError: The layout is ambiguous: a split has images but no class folders, two folders are the same split, or
            splits are below another folder.
    """
    source = Path(source)
    if not source.is_dir():
        return SplitFolders({}, [])
    folders = [folder for folder in subfolders(source) if _has_images(folder)]
    named: dict[str, Path] = {}
    for folder in folders:
        if found := _SPLITS.get(folder.name.lower()):
            if found in named:
                raise DataError(f"{source}: {named[found].name} and {folder.name} are the same split; remove one")
            named[found] = folder
    others = [folder.name for folder in folders if folder not in named.values()]
    flat = {found: folder for found, folder in named.items() if not any(map(_has_images, subfolders(folder)))}
    if not named or (len(named) == len(flat) == 1 and others):
        for folder in folders:
            _check_no_splits_inside(source, folder)
        return SplitFolders({}, [])
    for found, folder in flat.items():
        if split in (None, found):
            remedy = "" if len(flat) == len(named) else ", or import one of the other splits alone"
            raise DataError(
                f"{folder}: contains images but no class folders; expected {folder.name}/<class>/<image>{remedy}"
            )
    return SplitFolders({found: named[found] for found in SPLITS if found in named and found not in flat}, others)


def _has_images(folder: Path) -> bool:
    return any(map(is_image, folder.rglob("*")))


def _check_no_splits_inside(source: Path, folder: Path) -> None:
    """Raise a `DataError` if a class folder contains splits, which would be merged into one."""
    inside = [path for path in subfolders(folder) if path.name.lower() in _SPLITS and _has_images(path)]
    if {"train"} < {_SPLITS[path.name.lower()] for path in inside}:
        names = " and ".join(path.name for path in inside)
        remedy = f"; import {folder}" if any(map(subfolders, inside)) else ""
        raise DataError(
            f"{folder}: contains the splits {names}; expected {source.name}/<split>/<class>/<image>{remedy}"
        )
