"""Readers for the published files of CIFAR, MNIST and SVHN."""

from __future__ import annotations

import logging
import re
import struct
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moon.data import plain_pickle
from moon.data.archives import read_start, read_tar
from moon.data.dataset import AnyPath, DataSet, as_dataset
from moon.data.folders import check_link, files_in
from moon.data.limits import max_bytes, read_bytes
from moon.data.mat_file import read_mat
from moon.errors import DataError

_log = logging.getLogger(__name__)
_MAX_DIMENSIONS = 4  # of an idx array

CIFAR_SPLITS = {
    "train": re.compile(r"^(data_batch_\d(\.bin)?|train(\.bin)?)$"),
    "test": re.compile(r"^(test_batch(\.bin)?|test(\.bin)?)$"),
}
# Files with the names of the classes: CIFAR-10 and CIFAR-100, Python and binary version.
_CIFAR_NAMES = {"batches.meta", "meta", "batches.meta.txt", "fine_label_names.txt"}
_IDX_STEMS = {"train": "train", "test": "t10k"}


def read_cifar(source: AnyPath, split: str) -> DataSet:
    """Read CIFAR-10 or CIFAR-100, binary or Python version.

    The Python version consists of pickles, which are read without executing anything in them.

    Args:
        source: The published .tar.gz, its folder, or one batch file.
        split: "train" or "test".

    Returns:
        The data set; the labels of CIFAR-100 are the fine ones. Its classes have names if the file that lists them is
        in the archive or folder.

    Raises:
        DataError: The source is missing or damaged, or is not CIFAR.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from moon import read_cifar
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "test_batch.bin").write_bytes(bytes([3]) + bytes(3072))  # one image, label 3
        ...     read_cifar(folder, "test").labels.tolist()
        [3]
    """
    source = Path(source)
    files = list(_cifar_files(source, split))
    batches = [(where, content) for where, name, content in files if name not in _CIFAR_NAMES]
    if not batches:
        raise DataError(f"{source}: contains no CIFAR {split} batch (data_batch_1, test_batch.bin, train, ...)")
    parts = [
        _cifar_binary(content, where) if where.endswith(".bin") else _cifar_pickle(content, where)
        for where, content in batches
    ]
    images, labels = np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts])
    named = [
        names for where, name, content in files if name in _CIFAR_NAMES and (names := _cifar_names(content, where))
    ]
    classes = next((names for names in named if len(set(names)) == len(names) > labels.max()), ())
    return DataSet(images, labels, classes)


def _cifar_files(source: Path, split: str) -> Iterator[tuple[str, str, bytes]]:
    """Yield (path for messages, name, content) of each batch of the split and each file with names of classes."""
    pattern = CIFAR_SPLITS.get(split)
    if pattern is None:
        raise DataError(f"{source}: CIFAR has the splits train and test, not '{split}'")

    def is_needed(name: str) -> bool:
        return name in _CIFAR_NAMES or pattern.match(name) is not None

    if source.is_dir():
        for path in sorted(path for path in files_in(source, source) if is_needed(path.name)):
            check_link(path, source)
            yield str(path), path.name, read_bytes(path)
    elif source.name.endswith((".tar.gz", ".tgz", ".tar")):
        for member, content in read_tar(source, is_needed).items():
            yield f"{source}:{member}", PurePosixPath(member).name, content
    else:
        yield str(source), source.name, read_bytes(source)


def _cifar_names(content: bytes, where: str) -> tuple[str, ...]:
    """Read the names of the classes; a file that does not contain them is skipped with a warning."""
    try:
        if where.endswith(".txt"):
            return tuple(content.decode("utf-8").split())
        table = {_text(key): value for key, value in plain_pickle.read(content).items()}
        found = [_text(name) for name in table["fine_label_names" if "fine_label_names" in table else "label_names"]]
        if not all(isinstance(name, str) for name in found):
            raise TypeError("a name is not text")
        return tuple(found)
    except (plain_pickle.PickleError, UnicodeDecodeError, AttributeError, TypeError, KeyError) as error:
        _log.warning("%s: names of classes cannot be read (%s); classes have numbers only", where, error)
        return ()


def _text(value: Any) -> Any:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _cifar_binary(content: bytes, where: str) -> DataSet:
    """Read records of one label byte (CIFAR-100: coarse and fine) and 3072 image bytes, channel first."""
    for label_bytes in (1, 2):
        if content and len(content) % (3072 + label_bytes) == 0:
            records = np.frombuffer(content, np.uint8).reshape(-1, 3072 + label_bytes)
            return _cifar_images(records[:, label_bytes:], records[:, label_bytes - 1], where)
    raise DataError(f"{where}: {len(content)} bytes are not a multiple of a CIFAR record; is the file truncated?")


def _cifar_pickle(content: bytes, where: str) -> DataSet:
    """Read one batch of the Python version."""
    try:
        batch = plain_pickle.read(content)
    except plain_pickle.PickleError as error:
        raise DataError(f"{where}: {error}") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: contains a {type(batch).__name__}, not a CIFAR batch")
    batch = {_text(key): value for key, value in batch.items()}
    labels = batch.get("fine_labels", batch.get("labels"))
    if "data" not in batch or labels is None:
        raise DataError(f"{where}: has no 'data' and 'labels'; it has {sorted(map(str, batch))}")
    data = batch["data"]
    if not isinstance(data, np.ndarray):
        raise DataError(f"{where}: 'data' is a {type(data).__name__}, not an array")
    if isinstance(labels, list) and all(type(label) is int and abs(label) < 2**31 for label in labels):
        labels = np.array(labels, np.int64)
    if not isinstance(labels, np.ndarray):
        raise DataError(f"{where}: labels are not a list of integers")
    return _cifar_images(data, labels, where)


def _cifar_images(flat: NDArray, labels: NDArray, where: str) -> DataSet:
    """Reshape (N, 3072), channel first, to images."""
    if flat.ndim != 2 or flat.shape[1] != 3072:
        raise DataError(f"{where}: images of shape {flat.shape}; CIFAR has (N, 3072)")
    return as_dataset(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, where)


def read_idx(source: AnyPath, split: str) -> DataSet:
    """Read the idx files of MNIST and similar sets, compressed with gzip or not.

    Args:
        source: A folder that contains `train-images-idx3-ubyte` or `t10k-images-idx3-ubyte` and the file of labels, or
            the file of images itself; its labels must be in the same folder.
        split: "train" or "test".

    Returns:
        The data set.

    Raises:
        DataError: A file is missing or damaged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from moon import read_idx
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     header = bytes([0, 0, 8, 3, 0, 0, 0, 1, 0, 0, 0, 28, 0, 0, 0, 28])  # 1 image of 28x28 bytes
        ...     _ = Path(folder, "t10k-images-idx3-ubyte").write_bytes(header + bytes(784))
        ...     _ = Path(folder, "t10k-labels-idx1-ubyte").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
        ...     read_idx(folder, "test").labels.tolist()
        [7]
    """
    source = Path(source)
    if source.is_dir():
        if split not in _IDX_STEMS:
            raise DataError(f"{source}: idx folders have the splits train and test, not '{split}'")
        pattern = f"{_IDX_STEMS[split]}-images*"
        found = sorted(source.glob(pattern))
        if not found:
            raise DataError(f"{source}: contains no {pattern}")
        source = found[0]
        check_link(source, source.parent)
    stem = source.name.replace("images", "labels").replace("idx3", "idx1")
    candidates = [
        source.with_name(stem),
        source.with_name(stem + ".gz"),
        source.with_name(stem.removesuffix(".gz")),
    ]
    labels = next((path for path in candidates if path.is_file() and path != source), None)
    if labels is None:
        raise DataError(f"{source}: its labels, {stem}, are not in the same folder")
    check_link(labels, labels.parent)
    return as_dataset(_idx_array(source), _idx_array(labels), source)


def _idx_array(path: Path) -> NDArray[np.uint8]:
    """Read one idx array of bytes."""
    shape: tuple[int, ...] = ()
    start = 0

    def size_of(header: bytes) -> int:
        nonlocal shape, start
        if len(header) < 4 or header[:3] != b"\0\0\x08":
            raise DataError(f"{path}: is not an idx file of bytes")
        dimensions = header[3]
        start = 4 + 4 * dimensions
        if not 1 <= dimensions <= _MAX_DIMENSIONS or len(header) < start:
            raise DataError(f"{path}: is truncated inside its header, or has {dimensions} dimensions")
        shape = struct.unpack(f">{dimensions}I", header[4:start])
        return start + prod(shape)

    content = read_start(path, 4 + 4 * _MAX_DIMENSIONS, size_of)
    if (found := len(content) - start) != prod(shape):
        count = f"more than {prod(shape)}" if found > prod(shape) else found
        raise DataError(f"{path}: {count} bytes of data, but its header says {shape}; is it truncated?")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_svhn(source: AnyPath, split: str) -> DataSet:
    """Read the cropped digits of SVHN, `train_32x32.mat` or `test_32x32.mat`.

    Args:
        source: The .mat file, or its folder.
        split: "train" or "test".

    Returns:
        The data set; label 10 of the file becomes 0, the digit zero.

    Raises:
        DataError: The file is missing or damaged.

    Example:
        >>> import tempfile
        >>> import numpy as np
        >>> from scipy.io import savemat
        >>> from moon import read_svhn
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     savemat(f"{folder}/test_32x32.mat", {"X": np.zeros((32, 32, 3, 2), np.uint8), "y": [[10], [4]]})
        ...     read_svhn(folder, "test").labels.tolist()
        [0, 4]
    """
    source = Path(source)
    path = source / f"{split}_32x32.mat" if source.is_dir() else source
    if path != source:
        check_link(path, source)
    content = read_bytes(path)
    found = read_mat(content, ("X", "y"), max_bytes(), path)
    if missing := {"X", "y"} - found.keys():
        raise DataError(f"{path}: is not an SVHN file: it has no array {min(missing)}")
    images, labels = found["X"], found["y"]
    if images.ndim != 4:
        raise DataError(f"{path}: X has shape {images.shape}; SVHN has (32, 32, 3, N)")
    labels = labels.reshape(-1)
    return as_dataset(images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), path)
