"""Add sets to a data root: import them from a public format, or hold out training images of another set."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from moon.data.benchmarks import BENCHMARKS
from moon.data.dataset import AnyPath, DataSet, Track, check_name, load, path_of, save, split_off
from moon.data.embedded import EMBEDDED_SPLITS
from moon.data.readers import read_any
from moon.data.sets import open_set
from moon.suggest import did_you_mean

SPLITS = ("train", "val", "test")


class SavedSplit(NamedTuple):
    """A split under the data root, after `import_set` or `hold_out`.

    Args:
        path: Its file.
        dataset: Its contents.
        is_new: Whether the file was written; False if it already existed with the same images.
    """

    path: Path
    dataset: DataSet
    is_new: bool


def import_set(
    root: AnyPath,
    source: AnyPath,
    name: str,
    split: str = "test",
    *,
    image_root: AnyPath | None = None,
    size: int = 32,
    replace: bool = False,
    track: Track = iter,
) -> SavedSplit:
    """Import one split of a set from a public format and save it as `<root>/<name>/<split>.npz`.

    Args:
        root: The data root.
        source: A file or folder in one of the formats of `read_any`.
        name: The name of the set under the root.
        split: "train", "val" or "test".
        image_root: The folder that the paths of an image list are relative to; default: the folder of the list.
        size: Height and width of images from class folders and image lists.
        replace: Whether to overwrite a split that has other images.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The saved split.

    Raises:
        ValueError: The name or the split is not allowed, or the split exists with other images.
        DataError: The source cannot be read.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from moon.data import import_set
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     source = Path(folder, "test_batch.bin")
        ...     _ = source.write_bytes(bytes([3]) + bytes(3072))  # CIFAR: one image, label 3
        ...     saved = import_set(folder, source, "mine")
        >>> saved.path.name, saved.dataset.labels.tolist(), saved.is_new
        ('test.npz', [3], True)
    """
    if split not in SPLITS:
        raise ValueError(f"split must be train, val or test, not '{split}'{did_you_mean(split, SPLITS)}")
    _check_new_name(name)
    return _save_split(read_any(source, split, image_root, size, track), root, name, split, replace)


def hold_out(root: AnyPath, source: str, name: str, share: float = 0.1, *, replace: bool = False) -> list[SavedSplit]:
    """Make a set whose test images are held out of the training images of another set.

    The test split of the new set is the first `share` of each class of the source's training images; its training split
    is the rest. Options can then be tuned without looking at the source's test images.

    Args:
        root: The data root.
        source: The name of the set whose training images are divided.
        name: The name of the new set.
        share: Share of the training images that are held out, above 0 and below 1.
        replace: Whether to overwrite splits that have other images.

    Returns:
        The training split and the test split.

    Raises:
        ValueError: The name or the share is not allowed, or a split exists with other images.
        DataError: The source is missing or invalid.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, hold_out, save
        >>> dataset = DataSet(np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = save(dataset, root, "mine", "train")
        ...     train, test = hold_out(root, "mine", "mine-held-out", share=0.1)
        >>> len(train.dataset.labels), len(test.dataset.labels)
        (36, 4)
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be above 0 and below 1, not {share:g}")
    _check_new_name(name)
    if name == source or name in BENCHMARKS:
        why = "the set that images are held out of" if name == source else "the name of a benchmark"
        raise ValueError(f"'{name}' is {why}; choose another name")
    dataset = open_set(root, source, "train")
    assert isinstance(dataset, DataSet)  # only sets of a benchmark with image lists are not
    held_out, rest = split_off(dataset, share)
    return [
        _save_split(rest, root, name, "train", replace),
        _save_split(held_out, root, name, "test", replace),
    ]


def _check_new_name(name: str) -> None:
    """Raise a ValueError for the names of sets that are not read from the data root."""
    check_name(name)
    if name in BENCHMARKS and BENCHMARKS[name].lists:
        raise ValueError(f"'{name}' is read from OpenOOD's image lists; choose another name")
    if name in EMBEDDED_SPLITS:
        raise ValueError(f"'{name}' is the name of an embedded set; choose another name")


def _save_split(dataset: DataSet, root: AnyPath, name: str, split: str, replace: bool) -> SavedSplit:
    """Save a split; other images are overwritten only if `replace`."""
    path = path_of(root, name, split)
    if path.exists() and not replace:
        if load(root, name, split).digest() == dataset.digest():
            return SavedSplit(path, dataset, is_new=False)
        raise ValueError(f"{path}: exists with other images; choose another name, or replace it")
    return SavedSplit(save(dataset, root, name, split), dataset, is_new=True)
