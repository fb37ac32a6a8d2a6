"""Readers of the formats that data sets are published in; each returns a `DataSet`."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tarfile
import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from moon.data import plain_pickle
from moon.data.dataset import AnyPath, DataError, DataSet, Track, as_dataset

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
MAX_PIXELS = 2**26  # per image; no image of the public sets is larger

_MAX_BYTES = 2**30  # per unpacked file; the largest of the public sets has 154 million

_CIFAR_SPLITS = {
    "train": re.compile(r"^(data_batch_\d(\.bin)?|train(\.bin)?)$"),
    "test": re.compile(r"^(test_batch(\.bin)?|test(\.bin)?)$"),
}
_IDX_STEMS = {"train": "train", "test": "t10k"}


def read_cifar(source: AnyPath, split: str) -> DataSet:
    """Read CIFAR-10 or CIFAR-100, binary or Python version.

    The Python version consists of pickles, which are read without executing anything in them.

    Args:
        source: The published .tar.gz, its folder, or one batch file.
        split: "train" or "test".

    Returns:
        The data set; the labels of CIFAR-100 are the fine ones.

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
    if not files:
        raise DataError(f"{source}: contains no CIFAR {split} batch (data_batch_1, test_batch.bin, train, ...)")
    parts = [
        _cifar_binary(content, where) if where.endswith(".bin") else _cifar_pickle(content, where)
        for where, content in files
    ]
    return DataSet(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


def _cifar_files(source: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield (name for messages, content) of each batch file of the split."""
    pattern = _CIFAR_SPLITS.get(split)
    if pattern is None:
        raise DataError(f"{source}: CIFAR has the splits train and test, not '{split}'")
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and pattern.match(path.name):
                yield str(path), path.read_bytes()
    elif source.name.endswith((".tar.gz", ".tgz", ".tar")):
        try:
            with tarfile.open(source) as archive:
                members = {m.name: m for m in archive if m.isfile()}
                for name in sorted(members):
                    if pattern.match(PurePosixPath(name).name):
                        content = archive.extractfile(members[name])
                        assert content is not None
                        if members[name].size > _MAX_BYTES:
                            raise DataError(
                                f"{source}:{name}: {members[name].size:,} bytes; no CIFAR batch is that large"
                            )
                        yield f"{source}:{name}", content.read()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source}: cannot be read as an archive ({str(error).splitlines()[0]})") from error
    else:
        yield str(source), _read_bytes(source)


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
    batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = batch.get("fine_labels", batch.get("labels"))
    if "data" not in batch or labels is None:
        raise DataError(f"{where}: has no 'data' and 'labels'; it has {sorted(map(str, batch))}")
    return _cifar_images(np.asarray(batch["data"]), np.asarray(labels), where)


def _cifar_images(flat: NDArray, labels: NDArray, where: str) -> DataSet:
    """Reshape (N, 3072), channel first, to images."""
    if flat.ndim != 2 or flat.shape[1] != 3072:
        raise DataError(f"{where}: images of shape {flat.shape}; CIFAR has (N, 3072)")
    return as_dataset(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, where)


def read_idx(source: AnyPath, split: str) -> DataSet:
    """Read the idx files of MNIST and its relatives, compressed with gzip or not.

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
        found = sorted(path for path in source.glob(pattern) if path.is_file())
        if not found:
            raise DataError(f"{source}: contains no {pattern}")
        source = found[0]
    stem = source.name.replace("images", "labels").replace("idx3", "idx1")
    candidates = [
        source.with_name(stem),
        source.with_name(stem + ".gz"),
        source.with_name(stem.removesuffix(".gz")),
    ]
    labels = next((path for path in candidates if path.is_file() and path != source), None)
    if labels is None:
        raise DataError(f"{source}: its labels, {stem}, are not in the same folder")
    return as_dataset(_idx_array(source), _idx_array(labels), source)


def _idx_array(path: Path) -> NDArray[np.uint8]:
    """Read one idx array of bytes."""
    content = _read_bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MAX_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip ({error})") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path}: is not an idx file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path}: is truncated inside its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != prod(shape):
        raise DataError(f"{path}: {len(content) - start} bytes of data, its header says {shape}; is it truncated?")
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
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    source = Path(source)
    path = source / f"{split}_32x32.mat" if source.is_dir() else source
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    try:
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"]
    except (MatReadError, ValueError, KeyError, TypeError, NotImplementedError, OSError, zlib.error) as error:
        raise DataError(f"{path}: is not an SVHN .mat file with X and y ({error})") from error
    if images.ndim != 4:
        raise DataError(f"{path}: X has shape {images.shape}; SVHN has (32, 32, 3, N)")
    labels = labels.reshape(-1)
    return as_dataset(images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), path)


def read_folders(source: AnyPath, size: int = 32, track: Track = iter) -> DataSet:
    """Read class folders of images, `<source>/<class>/<image>`.

    Args:
        source: The folder of class folders. Classes are numbered in alphabetical order.
        size: Height and width of the result: the shorter side is resized, then the centre is cropped.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The data set, RGB.

    Raises:
        DataError: There are no class folders, one has no images, or an image cannot be decoded.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from moon import read_folders
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for name in ("cat", "dog"):
        ...         Path(folder, name).mkdir()
        ...         Image.new("RGB", (40, 30)).save(f"{folder}/{name}/1.png")
        ...     dataset = read_folders(folder, size=16)
        >>> dataset.images.shape, dataset.labels.tolist()
        ((2, 16, 16, 3), [0, 1])
    """
    source = Path(source)
    if not source.is_dir():
        raise DataError(f"{source}: no such folder")
    classes = sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(f"{source}: contains no class folders; expected {source.name}/<class>/<image>")
    entries: list[tuple[Path, int, object]] = []
    for label, folder in enumerate(classes):
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise DataError(f"{folder}: no images in this class folder")
        entries += [(path, label, path) for path in found]
    return _decode_all(entries, size, track, source)


def read_list(source: AnyPath, root: AnyPath | None = None, size: int = 32, track: Track = iter) -> DataSet:
    """Read an image list: one `<path> <label>` per line, label -1 for an image of no known class.

    Args:
        source: The list, a text file.
        root: The folder that paths are relative to; default: the folder of the list. Paths that lead out of it are
            refused.
        size: Height and width of the result: the shorter side is resized, then the centre is cropped.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The data set, RGB.

    Raises:
        DataError: The list is missing, empty or invalid, or an image cannot be decoded.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from moon import read_list
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 30)).save(f"{folder}/a.png")
        ...     _ = Path(folder, "list.txt").write_text("a.png 7")
        ...     read_list(f"{folder}/list.txt", size=16).labels.tolist()
        [7]
    """
    source = Path(source)
    root = Path(root or source.parent).resolve()
    entries: list[tuple[Path, int, object]] = []
    for relative, label, where in read_entries(source):
        path = (root / relative).resolve()
        if not path.is_relative_to(root):
            raise DataError(f"{where}: '{relative}' is outside the root {root}")
        entries.append((path, label, where))
    return _decode_all(entries, size, track, source)


def read_entries(source: Path) -> list[tuple[str, int, str]]:
    """Parse an image list, with line ends of any kind.

    Args:
        source: The list, a text file.

    Returns:
        (path, label, "file:line" for messages) of each line.

    Raises:
        DataError: The list is missing, empty or invalid.
    """
    try:
        text = _read_bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: is not text ({error})") from error
    entries: list[tuple[str, int, str]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"{source}:{number}"
        relative, _, label = line.strip().rpartition(" ")
        if not relative or not re.fullmatch(r"-?\d+", label):
            raise DataError(f"{where}: '{line.strip()}' is not '<path> <label>'")
        entries.append((relative, int(label), where))
    if not entries:
        raise DataError(f"{source}: the list is empty")
    return entries


def read_images(images: list[tuple[Path, int]], size: int, track: Track, where: object) -> DataSet:
    """Read images given as (path, label).

    Args:
        images: Path and label of each image.
        size: Height and width of the result: the shorter side is resized, then the centre is cropped.
        track: Wraps the list of images while they are decoded, for example in a progress bar.
        where: The source of the images, for error messages.

    Returns:
        The data set, RGB.

    Raises:
        DataError: There are no images, or one cannot be decoded.
    """
    if not images:
        raise DataError(f"{where}: no images")
    return _decode_all([(path, label, path) for path, label in images], size, track, where)


def _decode_all(entries: list[tuple[Path, int, object]], size: int, track: Track, where: object) -> DataSet:
    """Decode images given as (path, label, source for messages)."""
    images = np.stack([decode_image(path, size, source) for path, _, source in track(entries)])
    return as_dataset(images, np.array([label for _, label, _ in entries]), where)


def decode_image(path: Path, size: int, where: object) -> NDArray[np.uint8]:
    """Decode an image as OpenOOD prepares its test images: shorter side to `size` (bilinear), centre crop.

    Args:
        path: The image file.
        size: Height and width of the result.
        where: The source of the path, for error messages.

    Returns:
        Array (size, size, 3), RGB.

    Raises:
        DataError: The image is missing, damaged or too large.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from PIL import Image
        >>> from moon.data.readers import decode_image
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Image.new("RGB", (40, 30)).save(f"{folder}/a.png")
        ...     decode_image(Path(folder, "a.png"), 16, "a.png").shape
        (16, 16, 3)
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            width, height = image.size
            if width * height > MAX_PIXELS:
                raise DataError(
                    f"{where}: {path.name} is {width}x{height}, more than the {MAX_PIXELS:,} pixels allowed"
                )
            scale = size / min(width, height)
            target = max(size, round(width * scale)), max(size, round(height * scale))
            if target[0] * target[1] > MAX_PIXELS:
                raise DataError(f"{where}: {path.name} is {width}x{height}, too elongated to be resized to {size}")
            image = image.convert("RGB").resize(target, Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise DataError(f"{where}: no such file: {path}") from None
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: {path.name} cannot be read as an image ({error})") from error
    left, top = (target[0] - size) // 2, (target[1] - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _read_bytes(path: Path) -> bytes:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return path.read_bytes()


def read_any(source: AnyPath, split: str, root: AnyPath | None = None, size: int = 32, track: Track = iter) -> DataSet:
    """Read a data set in any of the supported formats, which is recognised by file names.

    Formats: CIFAR (.tar.gz, folder or batch), MNIST idx, SVHN .mat, class folders, image list (.txt).

    Args:
        source: A file or folder.
        split: "train" or "test"; class folders and image lists do not depend on it.
        root: The folder that the paths of an image list are relative to; default: the folder of the list.
        size: Height and width of images from class folders and image lists.
        track: Wraps the list of images while they are decoded, for example in a progress bar.

    Returns:
        The data set.

    Raises:
        DataError: The format is not recognised, or the source is missing or damaged.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> from moon import read_any
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     _ = Path(folder, "test_batch.bin").write_bytes(bytes([3]) + bytes(3072))  # CIFAR: one image, label 3
        ...     read_any(folder, "test").images.shape
        (1, 32, 32, 3)
    """
    try:
        return _read_any(Path(source), split, root, size, track)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:  # damage a reader did not expect
        raise DataError(f"{source}: cannot be read ({error or type(error).__name__})") from error


def _read_any(source: Path, split: str, root: AnyPath | None, size: int, track: Track) -> DataSet:
    if source.is_dir():
        names = {path.name for path in source.rglob("*") if path.is_file()}
        if any(pattern.match(name) for pattern in _CIFAR_SPLITS.values() for name in names):
            return read_cifar(source, split)
        if any("idx3-ubyte" in name for name in names):
            return read_idx(source, split)
        if any(name.endswith("_32x32.mat") for name in names):
            return read_svhn(source, split)
        return read_folders(source, size, track)
    if source.suffix == ".mat":
        return read_svhn(source, split)
    if source.suffix in (".txt", ".lst"):
        return read_list(source, root, size, track)
    if "idx3" in source.name:
        return read_idx(source, split)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.name.endswith((".tar.gz", ".tgz", ".tar")) or any(p.match(source.name) for p in _CIFAR_SPLITS.values()):
        return read_cifar(source, split)
    raise DataError(
        f"{source}: format not recognised; expected CIFAR (.tar.gz, .bin, batches), MNIST idx, SVHN .mat, "
        "class folders or an image list (.txt)"
    )
