"""Data sets in memory: images, labels and names of the classes, stored as `<root>/<name>/<split>.npz`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moon.data.archives import read_npz
from moon.data.class_names import checked_names, described
from moon.errors import DataError
from moon.files import write_arrays
from moon.suggest import counted

Track = Callable[[list], Iterable]  # wraps the list that a function works through, for example in a progress bar
AnyPath = Path | str
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_OPTIONAL = {"classes", "files"}  # arrays of a file that may be missing
RESERVED_NAMES = ("known", "near", "far")  # scores and tables use these keys next to the names of sets


class DataSet(NamedTuple):
    """Images and their labels, in memory.

    Args:
        images: Array (N, H, W, C) of uint8; C is 1 (grey) or 3 (RGB).
        labels: Array (N,) of int64: 0..K-1 for the known classes, -1 for an image of no known class.
        classes: The name of each class, by label; empty if the classes have no names.
        files: Array (N,) of strings, the file of each image; None if they are not known.

    Example:
        >>> import numpy as np
        >>> from moon import DataSet
        >>> dataset = DataSet(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 1, -1]), ("cat", "dog"))
        >>> dataset
        DataSet(4 images of 8x8x1, labels -1 to 1: 'cat', 'dog')
        >>> dataset.take(dataset.labels >= 0).images.shape
        (3, 8, 8, 1)
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]
    classes: tuple[str, ...] = ()
    files: NDArray[np.str_] | None = None

    def __repr__(self) -> str:
        size = "x".join(map(str, np.shape(self.images)[1:]))
        return f"DataSet({counted(len(self.images), 'image')} of {size}, {described(self.labels, self.classes)})"

    def take(self, indices: NDArray) -> DataSet:
        """Select samples.

        Args:
            indices: Integer indices, or a boolean mask (N,).

        Returns:
            The selected samples.
        """
        files = None if self.files is None else self.files[indices]
        return DataSet(self.images[indices], self.labels[indices], self.classes, files)

    def digest(self) -> str:
        """Return the SHA-256 of all pixels and labels, without names, as hexadecimal digits."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()


def as_dataset(
    images: ArrayLike, labels: ArrayLike, where: object, classes: ArrayLike = (), files: NDArray[np.str_] | None = None
) -> DataSet:
    """Check arrays and make a `DataSet` of them.

    Args:
        images: Array (N, H, W, C) of uint8; grey images may be (N, H, W).
        labels: Array (N,) of integers, -1 or more.
        where: The source of the arrays, for error messages.
        classes: The name of each class, by label; empty if the classes have no names.
        files: Array (N,) of strings, the file of each image, if they are known.

    Returns:
        The data set, with contiguous images and int64 labels.

    Raises:
        DataError: The arrays are not a data set.

    Example:
        >>> import numpy as np
        >>> from moon.data import as_dataset
        >>> as_dataset(np.zeros((2, 8, 8), np.uint8), [0, 1], "my images").images.shape
        (2, 8, 8, 1)
    """
    images, labels = np.asarray(images), np.asarray(labels)
    if images.ndim == 3:
        images = images[..., None]
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[3] not in (1, 3):
        raise DataError(
            f"{where}: images are {images.dtype} of shape {images.shape}; they must be uint8 (N, H, W, 1 or 3)"
        )
    if labels.ndim != 1 or (labels.dtype.kind not in "iu" and len(labels)):  # an empty list is an array of floats
        raise DataError(f"{where}: labels are {labels.dtype} of shape {labels.shape}; they must be integers (N,)")
    if len(images) != len(labels):
        both = f"{counted(len(images), 'image')} but {counted(len(labels), 'label')}"
        raise DataError(f"{where}: {both}; there must be one label per image, -1 if it is of no known class")
    if images.size == 0:
        raise DataError(f"{where}: no images")
    labels = labels.astype(np.int64)
    if labels.min() < -1:
        raise DataError(f"{where}: label {labels.min()} of image {labels.argmin()}; it must be at least -1 (unknown)")
    if files is not None and (files.dtype.kind != "U" or files.shape != labels.shape):
        raise DataError(f"{where}: files are {files.dtype} of shape {files.shape}; they must be strings (N,)")
    return DataSet(np.require(images, requirements=["C", "W"]), labels, checked_names(classes, labels, where), files)


def check_name(name: str, where: str = "") -> None:
    """Raise a `DataError` if a name cannot be the name of a data set.

    Args:
        name: The name of a set.
        where: The source of the name, for the error message.

    Raises:
        DataError: The name could be a path outside the data root, or is reserved as a key of scores and tables.

    Example:
        >>> from moon.data import check_name
        >>> check_name("cifar10")
    """
    prefix = f"{where}: " if where else ""
    if not _NAME.fullmatch(name):
        raise DataError(f"{prefix}'{name}' is not a valid data set name; use letters, digits, '.', '_' and '-'")
    if name in RESERVED_NAMES:
        keys = "'known', 'near' and 'far' are keys of scores and tables"
        raise DataError(f"{prefix}'{name}' is not a valid data set name: {keys}; choose another name")


def path_of(root: AnyPath, name: str, split: str) -> Path:
    """Return the path of a split, `<root>/<name>/<split>.npz`; the file need not exist.

    Args:
        root: The data root.
        name: The name of the set.
        split: The name of the split.

    Returns:
        The path.

    Raises:
        DataError: `name` or `split` cannot be part of a path, or `name` is reserved.

    Example:
        >>> from moon.data import path_of
        >>> path_of("data", "cifar10", "test").as_posix()
        'data/cifar10/test.npz'
    """
    check_name(name)
    if not _NAME.fullmatch(split):
        raise DataError(f"'{split}' is not a valid split name; use letters, digits, '.', '_' and '-'")
    return Path(root) / name / f"{split}.npz"


def check_root(root: AnyPath) -> None:
    """Raise a `DataError` if the data root is a file."""
    if Path(root).is_file():
        raise DataError(f"{root}: is a file, not a folder; set the data root to a folder of data sets")


def load(root: AnyPath, name: str, split: str) -> DataSet:
    """Load `<root>/<name>/<split>.npz`.

    Args:
        root: The data root.
        name: The name of the set.
        split: The name of the split.

    Returns:
        The data set.

    Raises:
        DataError: The file is missing, damaged, or its arrays are not a data set.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, load, save
        >>> with tempfile.TemporaryDirectory() as root:
        ...     path = save(DataSet(np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 1])), root, "mine", "test")
        ...     load(root, "mine", "test").labels.tolist()
        [0, 1]
    """
    arrays = _read(path := path_of(root, name, split), "images", "labels", *_OPTIONAL)
    return as_dataset(arrays["images"], arrays["labels"], path, arrays.get("classes", ()), arrays.get("files"))


def load_labels(root: AnyPath, name: str, split: str) -> NDArray:
    """Load the labels of a split, unchecked, and not its images."""
    return np.atleast_1d(_read(path_of(root, name, split), "labels")["labels"])


def load_classes(root: AnyPath, name: str, split: str) -> tuple[str, ...]:
    """Load the names of the classes of a split, unchecked, and not its images; empty if they have no names."""
    found = _read(path_of(root, name, split), "classes").get("classes", np.array(()))
    return tuple(str(name) for name in np.atleast_1d(found))


def _read(path: Path, *names: str) -> dict[str, NDArray]:
    """Read arrays of an .npz file."""
    if not path.exists():
        raise DataError(
            f"{path}: no such file; import the set with `moon data import`, or set the data root (MOON_DATA) to the "
            "folder that contains it"
        )
    arrays, present = read_npz(path, names)
    if missing := set(names) - _OPTIONAL - arrays.keys():
        found = f"{path}: has no array '{min(missing)}'; it has {sorted(present)[:20]}"
        labels = "; labels are one integer per image, 0 to K-1, or -1 for an image of no known class"
        raise DataError(found + (labels if "labels" in missing else ""))
    return arrays


def save(dataset: DataSet, root: AnyPath, name: str, split: str) -> Path:
    """Write `<root>/<name>/<split>.npz` atomically; an existing file is overwritten.

    Args:
        dataset: The data set.
        root: The data root; folders are created as needed.
        name: The name of the set.
        split: The name of the split.

    Returns:
        The path of the file.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from moon.data import DataSet, save
        >>> with tempfile.TemporaryDirectory() as root:
        ...     save(DataSet(np.zeros((2, 8, 8, 1), np.uint8), np.array([0, 1])), root, "mine", "test").name
        'test.npz'
    """
    path = path_of(root, name, split)
    path.parent.mkdir(parents=True, exist_ok=True)
    names = {"classes": np.array(dataset.classes)} if dataset.classes else {}
    files = {} if dataset.files is None else {"files": dataset.files}
    write_arrays(path, {"images": dataset.images, "labels": dataset.labels} | names | files, compress=False)
    return path


class _Labelled(Protocol):
    @property
    def labels(self) -> NDArray[np.int64]: ...

    def take(self, indices: NDArray) -> Self: ...


_AnyLabelled = TypeVar("_AnyLabelled", bound=_Labelled)


def split_off(dataset: _AnyLabelled, fraction: float) -> tuple[_AnyLabelled, _AnyLabelled]:
    """Split a data set in two, class by class. OpenOOD makes its validation split in this way.

    Args:
        dataset: The data set, in memory or a list of images.
        fraction: Share of each class in the first part, rounded, at least one image. A class with a single image is
            not split.

    Returns:
        (part, rest): the first `fraction` of each class, and the other images.

    Example:
        >>> import numpy as np
        >>> from moon.data import DataSet, split_off
        >>> dataset = DataSet(np.zeros((20, 8, 8, 1), np.uint8), np.arange(20) % 2)
        >>> part, rest = split_off(dataset, 0.1)
        >>> part.labels.tolist(), len(rest.labels)
        ([0, 1], 18)
    """
    chosen = np.zeros(len(dataset.labels), bool)
    for label in np.unique(dataset.labels):
        members = np.flatnonzero(dataset.labels == label)
        if len(members) > 1:
            chosen[members[: max(1, round(fraction * len(members)))]] = True
    return dataset.take(chosen), dataset.take(~chosen)
