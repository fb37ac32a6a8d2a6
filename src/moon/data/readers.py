"""Readers of the formats data sets are published in; each gives a `DataSet` or a `DataError` that names the place."""

from __future__ import annotations

import gzip
import io
import re
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from math import prod
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from moon.data import plain_pickle
from moon.data.dataset import DataError, DataSet, checked

IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff", ".gif"}
MOST_PIXELS = 2**26  # of one image: 64 million, more than any of the known sets has

_MOST_BYTES = 2**30  # of one file, unpacked; the largest of the known sets has 154 million

_CIFAR_SPLITS = {
    "train": re.compile(r"^(data_batch_\d(\.bin)?|train(\.bin)?)$"),
    "test": re.compile(r"^(test_batch(\.bin)?|test(\.bin)?)$"),
}
_IDX_STEMS = {"train": "train", "test": "t10k"}


def read_cifar(source: Path, split: str) -> DataSet:
    """CIFAR-10 or CIFAR-100, binary or Python version: the published .tar.gz, its folder, or one batch file.

    The labels of CIFAR-100 are the fine ones. The Python version is read without executing anything in it.
    """
    files = list(_cifar_files(source, split))
    if not files:
        raise DataError(f"{source}: no CIFAR {split} batch in it (data_batch_1, test_batch.bin, train, ...)")
    parts = [
        _cifar_binary(content, where) if where.endswith(".bin") else _cifar_pickle(content, where)
        for where, content in files
    ]
    return DataSet(np.concatenate([p.images for p in parts]), np.concatenate([p.labels for p in parts]))


def _cifar_files(source: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """(name for messages, content) of each batch file of the split."""
    wanted = _CIFAR_SPLITS.get(split)
    if wanted is None:
        raise DataError(f"{source}: CIFAR has the splits train and test, not '{split}'")
    if source.is_dir():
        for path in sorted(source.rglob("*")):
            if path.is_file() and wanted.match(path.name):
                yield str(path), path.read_bytes()
    elif source.name.endswith((".tar.gz", ".tgz", ".tar")):
        try:
            with tarfile.open(source) as archive:
                members = {m.name: m for m in archive if m.isfile()}
                for name in sorted(members):
                    if wanted.match(PurePosixPath(name).name):
                        content = archive.extractfile(members[name])
                        assert content is not None
                        if members[name].size > _MOST_BYTES:
                            raise DataError(
                                f"{source}:{name}: {members[name].size:,} bytes; no CIFAR batch is so large"
                            )
                        yield f"{source}:{name}", content.read()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            raise DataError(f"{source}: cannot be read as an archive ({str(error).splitlines()[0]})") from error
    else:
        yield str(source), _bytes(source)


def _cifar_binary(content: bytes, where: str) -> DataSet:
    """Records of one label byte (CIFAR-100: coarse, fine) and 3072 image bytes, channel first."""
    for label_bytes in (1, 2):
        if content and len(content) % (3072 + label_bytes) == 0:
            records = np.frombuffer(content, np.uint8).reshape(-1, 3072 + label_bytes)
            return _cifar_images(records[:, label_bytes:], records[:, label_bytes - 1], where)
    raise DataError(f"{where}: {len(content)} bytes are no whole number of CIFAR records; is the file cut off?")


def _cifar_pickle(content: bytes, where: str) -> DataSet:
    try:
        batch = plain_pickle.read(content)
    except plain_pickle.PickleError as error:
        raise DataError(f"{where}: {error}") from error
    if not isinstance(batch, dict):
        raise DataError(f"{where}: holds a {type(batch).__name__}, not a CIFAR batch")
    batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    labels = batch.get("fine_labels", batch.get("labels"))
    if "data" not in batch or labels is None:
        raise DataError(f"{where}: has no 'data' and 'labels'; it has {sorted(map(str, batch))}")
    return _cifar_images(np.asarray(batch["data"]), np.asarray(labels), where)


def _cifar_images(flat: NDArray, labels: NDArray, where: str) -> DataSet:
    if flat.ndim != 2 or flat.shape[1] != 3072:
        raise DataError(f"{where}: images of shape {flat.shape}; CIFAR has (N, 3072)")
    return checked(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), labels, where)


def read_idx(source: Path, split: str) -> DataSet:
    """MNIST's idx files, .gz or not: a folder with `train-images-idx3-ubyte` or `t10k-...`, or the images file."""
    if source.is_dir():
        if split not in _IDX_STEMS:
            raise DataError(f"{source}: idx folders have the splits train and test, not '{split}'")
        pattern = f"{_IDX_STEMS[split]}-images*"
        found = sorted(path for path in source.glob(pattern) if path.is_file())
        if not found:
            raise DataError(f"{source}: no {pattern} in it")
        source = found[0]
    stem = source.name.replace("images", "labels").replace("idx3", "idx1")
    candidates = [
        source.with_name(stem),
        source.with_name(stem + ".gz"),
        source.with_name(stem.removesuffix(".gz")),
    ]
    labels = next((path for path in candidates if path.is_file() and path != source), None)
    if labels is None:
        raise DataError(f"{source}: its labels, {stem}, are not beside it")
    return checked(_idx(source), _idx(labels), source)


def _idx(path: Path) -> NDArray[np.uint8]:
    """One idx array of bytes."""
    content = _bytes(path)
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.GzipFile(fileobj=io.BytesIO(content)).read(_MOST_BYTES)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(f"{path}: damaged gzip ({error})") from error
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise DataError(f"{path}: is no idx file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise DataError(f"{path}: is cut off inside its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != prod(shape):
        raise DataError(f"{path}: {len(content) - start} bytes of data, its header says {shape}; is it cut off?")
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_svhn(source: Path, split: str) -> DataSet:
    """SVHN's cropped digits, `train_32x32.mat` or `test_32x32.mat`, or the folder they are in; label 10 is digit 0."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    path = source / f"{split}_32x32.mat" if source.is_dir() else source
    _bytes(path, only_check=True)
    try:
        content = loadmat(path, variable_names=["X", "y"])
        images, labels = content["X"], content["y"]
    except (MatReadError, ValueError, KeyError, TypeError, NotImplementedError, OSError, zlib.error) as error:
        raise DataError(f"{path}: is no SVHN .mat file with X and y ({error})") from error
    if images.ndim != 4:
        raise DataError(f"{path}: X has shape {images.shape}; SVHN has (32, 32, 3, N)")
    labels = labels.reshape(-1)
    return checked(images.transpose(3, 0, 1, 2), np.where(labels == 10, 0, labels), path)


def read_folders(source: Path, size: int, track: Callable[[list], Iterable] = iter) -> DataSet:
    """Class folders of images, `<source>/<class>/<image>`; classes are numbered in the order of their names."""
    if not source.is_dir():
        raise DataError(f"{source}: no such folder")
    classes = sorted(path for path in source.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not classes:
        raise DataError(f"{source}: no class folders in it; expected {source.name}/<class>/<image>")
    jobs: list[tuple[Path, int, object]] = []
    for label, folder in enumerate(classes):
        found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
        if not found:
            raise DataError(f"{folder}: no images in this class folder")
        jobs += [(path, label, path) for path in found]
    return _decode_all(jobs, size, track, source)


def read_list(source: Path, root: Path | None, size: int, track: Callable[[list], Iterable] = iter) -> DataSet:
    """An image list, `<path> <label>` a line, label -1 for unknown; paths start from `root` (default: its folder).

    A path that leaves the root is refused.
    """
    root = (root or source.parent).resolve()
    jobs: list[tuple[Path, int, object]] = []
    for relative, label, where in read_entries(source):
        path = (root / relative).resolve()
        if not path.is_relative_to(root):
            raise DataError(f"{where}: '{relative}' leaves the root {root}")
        jobs.append((path, label, where))
    return _decode_all(jobs, size, track, source)


def read_entries(source: Path) -> list[tuple[str, int, str]]:
    """(path, label, place in the list) of each line of an image list, line ends of any kind."""
    try:
        text = _bytes(source).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"{source}: is no text ({error})") from error
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


def read_paths(images: list[tuple[Path, int]], size: int, track: Callable[[list], Iterable], where: object) -> DataSet:
    """These images with these labels."""
    if not images:
        raise DataError(f"{where}: no images")
    return _decode_all([(path, label, path) for path, label in images], size, track, where)


def _decode_all(
    jobs: list[tuple[Path, int, object]], size: int, track: Callable[[list], Iterable], where: object
) -> DataSet:
    images = np.stack([decode(path, size, place) for path, _, place in track(jobs)])
    return checked(images, np.array([label for _, label, _ in jobs]), where)


def decode(path: Path, size: int, where: object) -> NDArray[np.uint8]:
    """One image as RGB: shorter side to `size` (bilinear), centre crop, as OpenOOD prepares its test images."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise DataError(f"{where}: {path.name} has {width}x{height} pixels, over the {MOST_PIXELS:,} allowed")
            scale = size / min(width, height)
            target = max(size, round(width * scale)), max(size, round(height * scale))
            if target[0] * target[1] > MOST_PIXELS:
                raise DataError(f"{where}: {path.name} is {width}x{height}, too long to be resized to {size}")
            image = image.convert("RGB").resize(target, Image.Resampling.BILINEAR)
    except FileNotFoundError:
        raise DataError(f"{where}: no such file: {path}") from None
    except DataError:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{where}: {path.name} cannot be read as an image ({error})") from error
    left, top = (target[0] - size) // 2, (target[1] - size) // 2
    return np.asarray(image.crop((left, top, left + size, top + size)))


def _bytes(path: Path, only_check: bool = False) -> bytes:
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    return b"" if only_check else path.read_bytes()


def read_any(
    source: Path,
    split: str,
    root: Path | None = None,
    size: int = 32,
    track: Callable[[list], Iterable] = iter,
) -> DataSet:
    """Read `source` in whichever of the formats it is in, judged by its names."""
    try:
        return _read_any(source, split, root, size, track)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:  # damage in an unforeseen place
        raise DataError(f"{source}: cannot be read ({error or type(error).__name__})") from error


def _read_any(source: Path, split: str, root: Path | None, size: int, track: Callable[[list], Iterable]) -> DataSet:
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
