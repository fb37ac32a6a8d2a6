"""Open sets by name: embedded ones, `.npz` files under the data root, or the image lists of a benchmark."""

from __future__ import annotations

from pathlib import Path

from moon.data.benchmarks import Benchmark
from moon.data.dataset import AnyPath, DataError, DataSet, Track, load, path_of, split_off
from moon.data.embedded import EMBEDDED_SPLITS, embedded
from moon.data.openood import list_path, open_list, read_list_cached
from moon.data.streams import ImageList

AnySet = DataSet | ImageList
"""A set in memory, or a list of images on disk."""


def has_set(root: AnyPath, name: str, split: str, benchmark: Benchmark | None = None) -> bool:
    """Return whether a split of a set is available.

    Args:
        root: The data root.
        name: The name of the set.
        split: "train", "val" or "test".
        benchmark: The benchmark the set is for; one with image lists has its own sets.

    Returns:
        Whether `open_set` finds it.

    Example:
        >>> from moon.data import has_set
        >>> has_set("nowhere", "digits", "test"), has_set("nowhere", "cifar10", "test")
        (True, False)
    """
    if benchmark is not None and benchmark.lists:
        return list_path(Path(root), benchmark.known_set, name, split).is_file()
    return split in EMBEDDED_SPLITS[name] if name in EMBEDDED_SPLITS else path_of(root, name, split).is_file()


def open_set(root: AnyPath, name: str, split: str, benchmark: Benchmark | None = None, track: Track = iter) -> AnySet:
    """Open a split of a set: the embedded set of that name, one under the root, or the image list of a benchmark.

    Args:
        root: The data root.
        name: The name of the set.
        split: "train", "val" or "test".
        benchmark: The benchmark the set is for; one with image lists has its own sets.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The set in memory, or a list of images if the benchmark streams them from disk.

    Raises:
        DataError: The set is missing or invalid.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, open_set, save
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = save(DataSet(np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 1])), root, "mine", "test")
        ...     open_set(root, "mine", "test").labels.tolist()
        [0, 1]
    """
    if benchmark is not None and benchmark.resize:
        return open_list(Path(root), benchmark.known_set, benchmark.lists, name, split)
    if benchmark is not None and benchmark.lists:
        return read_list_cached(Path(root), benchmark.known_set, benchmark.lists, name, split, benchmark.size, track)
    return embedded(name, split) if name in EMBEDDED_SPLITS else load(root, name, split)


def known_splits(root: AnyPath, benchmark: Benchmark, track: Track = iter) -> dict[str, AnySet]:
    """Open the splits of a benchmark's known set and check their labels.

    If the set has no validation split, the first tenth of each class of the test split is used for validation and
    removed from the test split.

    Args:
        root: The data root.
        benchmark: The benchmark.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The sets under "train", "test" and "val".

    Raises:
        DataError: A split is missing or invalid, or has labels outside 0..K-1.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, find_benchmark, known_splits, save
        >>> dataset = DataSet(np.zeros((40, 8, 8, 1), np.uint8), np.arange(40) % 2)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     paths = [save(dataset, root, "mine", split) for split in ("train", "test")]
        ...     splits = known_splits(root, find_benchmark(root, "mine"))
        >>> {split: len(dataset.labels) for split, dataset in splits.items()}
        {'train': 40, 'test': 36, 'val': 4}
    """
    name = benchmark.known_set
    splits = {split: open_set(root, name, split, benchmark, track) for split in ("train", "test")}
    if has_set(root, name, "val", benchmark):
        splits["val"] = open_set(root, name, "val", benchmark, track)
    else:
        test = splits["test"]
        if isinstance(test, ImageList):
            raise DataError(f"{list_path(Path(root), name, name, 'val')}: no such list")
        splits["val"], splits["test"] = split_off(test, 0.1)
        if not len(splits["val"].labels):
            raise DataError(f"{path_of(root, name, 'test')}: too few images per class to use a tenth for validation")
    for split, dataset in splits.items():
        low, high = dataset.labels.min(), dataset.labels.max()
        if low < 0 or high >= benchmark.num_known:
            raise DataError(
                f"{benchmark.name}/{split}: labels {low}..{high}; the known classes are 0..{benchmark.num_known - 1}"
            )
    return splits


def set_names(root: AnyPath) -> list[str]:
    """List the names of the sets under a data root, sorted; a missing folder has none."""
    return sorted({path.parent.name for path in Path(root).glob("*/*.npz") if not path.parent.name.startswith(".")})
