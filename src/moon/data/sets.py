"""Open sets by name: embedded ones, `.npz` files under the data root, or the image lists of a benchmark."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from moon.data.benchmarks import Benchmark
from moon.data.class_names import check_known_names
from moon.data.classes import check_known, enumerated, missing_classes, same_classes, warn_of_missing
from moon.data.dataset import AnyPath, DataSet, Track, check_root, load, load_labels, path_of, split_off
from moon.data.download import SOURCES, SPLITS_OF
from moon.data.embedded import EMBEDDED_SPLITS, embedded, is_installed
from moon.data.image_lists import count_entries
from moon.data.openood import list_path, open_list, read_list_cached
from moon.data.streamed_folders import folder_splits, open_folder
from moon.data.streams import ImageList
from moon.errors import DataError
from moon.files import open_regular
from moon.suggest import did_you_mean

_log = logging.getLogger(__name__)
_COMPARED_FILES, _END = 100_000, 4096
_NAMED = 3  # images that a message names
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
    if benchmark is not None and benchmark.streams(name):
        return split in folder_splits(Path(root), benchmark)
    if name in EMBEDDED_SPLITS:
        return split in EMBEDDED_SPLITS[name] and is_installed(name)
    return path_of(root, name, split).is_file()


def count_images(root: AnyPath, name: str, split: str, benchmark: Benchmark | None = None) -> int | None:
    """Count the images of a split without reading them.

    Args:
        root: The data root.
        name: The name of the set.
        split: "train", "val" or "test".
        benchmark: The benchmark the set is for; one with image lists has its own sets.

    Returns:
        The number of images; None if there is no such split.

    Raises:
        DataError: The file is damaged.

    Example:
        >>> from moon.data import count_images
        >>> count_images("nowhere", "digits", "train"), count_images("nowhere", "cifar10", "train")
        (3500, None)
    """
    if not has_set(root, name, split, benchmark):
        return None
    if benchmark is not None and benchmark.lists:
        return count_entries(list_path(Path(root), benchmark.known_set, name, split))
    if benchmark is not None and benchmark.streams(name):
        return len(open_folder(Path(root), benchmark, split).paths)
    return EMBEDDED_SPLITS[name][split] if name in EMBEDDED_SPLITS else len(load_labels(root, name, split))


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
    if benchmark is not None and benchmark.streams(name):
        return open_folder(Path(root), benchmark, split)
    if benchmark is not None and benchmark.lists and benchmark.resize:
        return open_list(Path(root), benchmark.known_set, benchmark.lists, name, split)
    if benchmark is not None and benchmark.lists:
        return read_list_cached(Path(root), benchmark.known_set, benchmark.lists, name, split, benchmark.size, track)
    if name in EMBEDDED_SPLITS:
        return embedded(name, split)
    if not path_of(root, name, split).is_file():
        raise DataError(_missing(Path(root), name, split))
    return load(root, name, split)


def _missing(root: Path, name: str, split: str) -> str:
    """Say what is missing and how to get it."""
    check_root(root)
    command = f"download {name}" if name in SOURCES and split in SPLITS_OF[name] else "import"
    found = [*(path.parent.name for path in root.glob(f"*/{split}.npz")), *EMBEDDED_SPLITS]
    meant = "" if (root / name).is_dir() else did_you_mean(name, found)
    why = f"no such file{meant}" if root.is_dir() else f"the data root {root} does not exist"
    if split == "test" and command == "import" and path_of(root, name, "train").is_file():
        return (
            f"{path_of(root, name, split)}: {why}; import test images with `moon data import`, or hold training images "
            f"out: `moon data hold-out {name} --name {name}-held`, which is a set to train on"
        )
    return (
        f"{path_of(root, name, split)}: {why}; {command.split()[0]} the set with `moon data {command}`, or set the "
        "data root (MOON_DATA) to the folder that contains it"
    )


def known_splits(root: AnyPath, benchmark: Benchmark, track: Track = iter) -> dict[str, AnySet]:
    """Open the splits of a benchmark's known set and check their labels.

    The training split numbers the classes: if classes have names, those of the other splits are matched by name. A
    warning is logged if a split has no images of some class, or images that are training images as well. If the set has
    no validation split, the first tenth of each class of the test split is used for validation and removed from the
    test split.

    Args:
        root: The data root.
        benchmark: The benchmark.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The sets under "train", "test" and "val".

    Raises:
        DataError: A split is missing or invalid, has labels outside 0..K-1, or has images of a class that the training
            split does not have. Or a class is called "unknown".

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
    found = [split for split in ("train", "test", "val") if split != "val" or has_set(root, name, split, benchmark)]
    splits = {split: open_set(root, name, split, benchmark, track) for split in found}
    classes = splits["train"].classes
    check_known_names(classes, f"{name}/train")
    for split in found[1:]:
        splits[split] = same_classes(splits[split], classes, f"{name}/{split}", f"{name}/train")
    if classes and len(classes) != benchmark.num_known:
        raise DataError(
            f"{name}/train: has {len(classes)} classes ({enumerated(classes)}), but {benchmark.name} has "
            f"{benchmark.num_known}; is it another set? Import it under another name"
        )
    missing = {}
    for split in found:
        labels, where = splits[split].labels, f"{name}/{split}"
        check_known(labels, benchmark.num_known, where)
        missing[split] = missing_classes(labels, benchmark.num_known)
        warn_of_missing(missing[split], classes, benchmark.num_known, where)
    for split in found[1:]:
        warn_of_overlap(splits["train"], splits[split], f"{name}/{split}")
    if "val" in splits:
        what = "test images as well; thresholds and detectors that are fitted on them have then seen the test"
        warn_of_overlap(splits["test"], splits["val"], f"{name}/val", what)
    if "val" not in splits:
        test = splits["test"]
        if isinstance(test, ImageList) and benchmark.lists:
            raise DataError(f"{list_path(Path(root), name, name, 'val')}: no such list")
        splits["val"], splits["test"] = split_off(test, 0.1)
        if not len(splits["val"].labels):
            raise DataError(f"{path_of(root, name, 'test')}: too few images per class to use a tenth for validation")
        without = np.setdiff1d(missing_classes(splits["val"].labels, benchmark.num_known), missing["test"])
        warn_of_missing(without, classes, benchmark.num_known, f"{name}/val, a tenth of {name}/test")
    return splits


def warn_of_overlap(
    first: AnySet,
    other: AnySet,
    where: str,
    what: str = "training images as well; results on them say nothing about new images",
) -> None:
    """Log a warning if images of a split are in another one, too: the same pixels, or equal files of a list."""
    if isinstance(first, ImageList) and isinstance(other, ImageList):
        both = _equal_files(first, other)
    else:
        found = set(identities(first))
        both = sum(identity in found for identity in identities(other))
    if both:
        _log.warning("%s: %s of %s images are %s", where, f"{both:,}", f"{len(other.labels):,}", what)


def identities(dataset: AnySet) -> Iterator[bytes | str]:
    """Yield what tells images apart: a digest of the pixels, or the path of a file that stays on disk."""
    if isinstance(dataset, ImageList):
        yield from dataset.paths
    else:
        for image in dataset.images:
            yield hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=16).digest()


def warn_of_two_labels(splits: Mapping[str, DataSet], where: object) -> None:
    """Log a warning if an image, the same pixels, is in two classes; unknown images are a class as well."""
    first: dict[bytes | str, tuple[int, str]] = {}
    pairs = []
    for split, dataset in splits.items():
        files = [f"{split} {i}" for i in range(len(dataset.labels))] if dataset.files is None else dataset.files
        for identity, label, file in zip(identities(dataset), dataset.labels.tolist(), files, strict=True):
            other = first.setdefault(identity, (label, str(file)))
            if other[0] != label:
                pairs.append(f"{other[1]} and {file}")
    if pairs:
        more = f", and {len(pairs) - _NAMED:,} more" if len(pairs) > _NAMED else ""
        _log.warning(
            "%s: %s of %s images are in two classes, with the same pixels: %s%s; remove one of each, or both",
            where, f"{len(pairs):,}", f"{sum(len(d.labels) for d in splits.values()):,}",
            ", ".join(pairs[:_NAMED]), more,
        )  # fmt: skip


def _equal_files(train: ImageList, other: ImageList) -> int:
    """How many files of a list are also in another: the same paths, or the same length and the same end.

    Lists of very many files are compared by path only.
    """
    if len(train.paths) + len(other.paths) > _COMPARED_FILES:
        found = set(train.paths)
        return sum(path in found for path in other.paths)
    sizes = [[_size_of(images.root / path) for path in images.paths] for images in (train, other)]
    shared = set(sizes[0]) & set(sizes[1]) - {-1}
    ends = [
        [
            _end_of(images.root / path, size) if size in shared else None
            for path, size in zip(images.paths, lengths, strict=True)
        ]
        for images, lengths in zip((train, other), sizes, strict=True)
    ]
    found = set(ends[0]) - {None}
    return sum(end in found for end in ends[1])


def _size_of(path: Path) -> int:
    """The length of a file; -1 if there is none, which is reported when it is read."""
    try:
        return path.stat().st_size
    except OSError:
        return -1


def _end_of(path: Path, size: int) -> tuple[int, bytes]:
    """The length of a file and its last bytes, which differ between compressed images."""
    with open_regular(path) as file:
        file.seek(max(0, size - _END))
        return size, file.read(_END)


def set_names(root: AnyPath) -> list[str]:
    """List the names of the sets under a data root, sorted; a missing folder has none."""
    return sorted({path.parent.name for path in Path(root).glob("*/*.npz") if not path.parent.name.startswith(".")})
