"""Data sets in memory: images (N, H, W, C) uint8 and labels (N,), stored as `<root>/<name>/<split>.npz`."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from moon.files import write_arrays

Track = Callable[[list], Iterable]  # wraps the list that a function works through, for example in a progress bar
AnyPath = Path | str
RESERVED_NAMES = ("known", "near", "far")  # scores and tables use these keys next to the names of sets


class DataError(ValueError):
    """Data that cannot be used. The message names the file or line, what is wrong and what to do.

    Example:
        >>> from moon.data import DataError, load
        >>> try:
        ...     load("nowhere", "cifar10", "test")
        ... except DataError as error:
        ...     print(str(error).split(";")[0])
        nowhere/cifar10/test.npz: no such file
    """


class DataSet(NamedTuple):
    """Images and their labels, in memory.

    Args:
        images: Array (N, H, W, C) of uint8; C is 1 (grey) or 3 (RGB).
        labels: Array (N,) of int64: 0..K-1 for the known classes, -1 for an image of no known class.

    Example:
        >>> import numpy as np
        >>> from moon import DataSet
        >>> dataset = DataSet(np.zeros((4, 8, 8, 1), np.uint8), np.array([0, 1, 2, -1]))
        >>> dataset.take(dataset.labels >= 0).images.shape
        (3, 8, 8, 1)
    """

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    def take(self, indices: NDArray) -> DataSet:
        """Select samples.

        Args:
            indices: Integer indices, or a boolean mask (N,).

        Returns:
            The selected samples.
        """
        return DataSet(self.images[indices], self.labels[indices])

    def digest(self) -> str:
        """Return the SHA-256 of all pixels and labels as hexadecimal digits."""
        digest = hashlib.sha256(np.ascontiguousarray(self.images).data)
        digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()


def as_dataset(images: ArrayLike, labels: ArrayLike, where: object) -> DataSet:
    """Check two arrays and make a `DataSet` of them.

    Args:
        images: Array (N, H, W, C) of uint8; grey images may be (N, H, W).
        labels: Array (N,) of integers, -1 or more.
        where: The source of the arrays, for error messages.

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
    if labels.dtype.kind not in "iu" or labels.ndim != 1:
        raise DataError(f"{where}: labels are {labels.dtype} of shape {labels.shape}; they must be integers (N,)")
    if len(images) != len(labels):
        raise DataError(f"{where}: {len(images)} images but {len(labels)} labels; there must be one label per image")
    if images.size == 0:
        raise DataError(f"{where}: no images")
    labels = labels.astype(np.int64)
    if labels.min() < -1:
        raise DataError(f"{where}: label {labels.min()} of image {labels.argmin()}; it must be at least -1 (unknown)")
    return DataSet(np.require(images, requirements=["C", "W"]), labels)


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
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", name):
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
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]*", split):
        raise DataError(f"'{split}' is not a valid split name; use letters, digits, '.', '_' and '-'")
    return Path(root) / name / f"{split}.npz"


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
    path = path_of(root, name, split)
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            if missing := {"images", "labels"} - set(file.files):
                raise DataError(f"{path}: has no array '{min(missing)}'; it has {sorted(file.files)}")
            return as_dataset(file["images"], file["labels"], path)
    except FileNotFoundError:
        raise DataError(
            f"{path}: no such file; import the set with `moon data import`, or set the data root (MOON_DATA) to the "
            "folder that contains it"
        ) from None
    except DataError:
        raise
    except (Exception, MemoryError) as error:  # a damaged file can fail anywhere in NumPy's reader
        raise DataError(f"{path}: cannot be read as .npz ({error or type(error).__name__})") from error


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
    write_arrays(path, {"images": dataset.images, "labels": dataset.labels}, compress=False)
    return path


def fit_to(dataset: DataSet, height: int, width: int, channels: int) -> DataSet:
    """Convert images to another size and number of channels.

    Grey becomes RGB by repetition, RGB becomes grey by luminance. As in OpenOOD, an image is resized so that it covers
    the target (bilinear, antialiased), then cropped at the centre.

    Args:
        dataset: The data set.
        height: Target height in pixels.
        width: Target width in pixels.
        channels: 1 or 3.

    Returns:
        The converted data set; `dataset` itself if nothing changes.

    Example:
        >>> import numpy as np
        >>> from moon.data import DataSet, fit_to
        >>> grey = DataSet(np.zeros((2, 28, 28, 1), np.uint8), np.array([0, 1]))
        >>> fit_to(grey, 32, 32, 3).images.shape
        (2, 32, 32, 3)
    """
    images = dataset.images
    if images.shape[1:] == (height, width, channels):
        return dataset
    if images.shape[3] == 3 and channels == 1:
        luminance = images.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
        images = np.rint(luminance).astype(np.uint8)[..., None]
    elif images.shape[3] == 1 and channels == 3:
        images = images.repeat(3, axis=3)
    old_height, old_width = images.shape[1:3]
    if (old_height, old_width) != (height, width):
        scale = max(height / old_height, width / old_width)
        size = max(height, round(old_height * scale)), max(width, round(old_width * scale))
        top, left = (size[0] - height) // 2, (size[1] - width) // 2
        chunks = []
        for chunk in torch.from_numpy(images).split(1024):
            x = chunk.permute(0, 3, 1, 2).float()
            x = torch.nn.functional.interpolate(x, size, mode="bilinear", antialias=True)
            x = x[:, :, top : top + height, left : left + width]
            chunks.append(x.round().clamp(0, 255).byte().permute(0, 2, 3, 1).numpy())
        images = np.concatenate(chunks)
    return DataSet(np.ascontiguousarray(images), dataset.labels)


def split_off(dataset: DataSet, fraction: float) -> tuple[DataSet, DataSet]:
    """Split a data set in two, class by class. OpenOOD makes its validation split in this way.

    Args:
        dataset: The data set.
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


def read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return path.read_bytes()
