"""Read a data set in any of the supported formats."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from moon.data.benchmarks import Size
from moon.data.dataset import AnyPath, DataSet, Track
from moon.data.folders import SplitFolders, files_in, find_splits
from moon.data.formats import CIFAR_SPLITS, read_cifar, read_idx, read_svhn
from moon.data.image_files import read_folders, read_list
from moon.errors import DataError

_log = logging.getLogger(__name__)
LIST_SUFFIXES = (".txt", ".lst")


def read_any(
    source: AnyPath,
    split: str,
    root: AnyPath | None = None,
    size: Size = 32,
    track: Track = iter,
    *,
    to_8_bit: int = 0,
    skipped: dict[Path, DataError] | None = None,
) -> DataSet:
    """Read a data set in any of the supported formats, which is recognised by file names.

    Formats: CIFAR (.tar.gz, folder or batch), MNIST idx, SVHN .mat, class folders (also in a folder for each split),
    image list (.txt).

    Args:
        source: A file or folder.
        split: "train", "val" or "test". Image lists, and class folders that are not in a folder for each split, do not
            depend on it.
        root: The folder that the paths of an image list are relative to; default: the folder of the list.
        size: Height and width of images from class folders and image lists, one number if they are square.
        track: Wraps the list of images while they are decoded, for example in a progress bar.
        to_8_bit: For class folders and image lists, the value that becomes 255 in images with more than 8 bits per
            channel; 0: they are an error.
        skipped: Gets the images of class folders and image lists that cannot be read, which are then left out; None:
            they are an error.

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
    source = Path(source)
    settings: dict[str, Any] = {"size": size, "track": track, "to_8_bit": to_8_bit, "skipped": skipped}
    try:
        if source.is_dir():
            return _read_folder(source, split, settings)
        return _read_file(source, split, root, settings)
    except DataError:
        raise
    except (ValueError, TypeError, OverflowError, RuntimeError, MemoryError) as error:  # undetected damage
        raise DataError(f"{source}: cannot be read ({error or type(error).__name__})") from error


def _read_folder(source: Path, split: str, settings: dict[str, Any]) -> DataSet:
    names = {path.name for path in files_in(source, source)}
    if any(pattern.match(name) for pattern in CIFAR_SPLITS.values() for name in names):
        return read_cifar(source, split)
    if any("idx3-ubyte" in name for name in names):
        return read_idx(source, split)
    if any(name.endswith("_32x32.mat") for name in names):
        return read_svhn(source, split)
    found = find_splits(source, split)
    if not found.splits:
        return read_folders(source, **settings)
    if split not in found.splits:
        raise DataError(f"{source}: contains the splits {', '.join(found.splits)}, not '{split}'")
    note_ignored(source, found)
    return read_folders(found.splits[split], root=source, **settings)


def _read_file(source: Path, split: str, root: AnyPath | None, settings: dict[str, Any]) -> DataSet:
    if source.suffix == ".mat":
        return read_svhn(source, split)
    if source.suffix in LIST_SUFFIXES:
        return read_list(source, root, **settings)
    if "idx3" in source.name:
        return read_idx(source, split)
    if not source.exists():
        raise DataError(f"{source}: no such file or folder")
    if source.name.endswith((".tar.gz", ".tgz", ".tar")) or any(p.match(source.name) for p in CIFAR_SPLITS.values()):
        return read_cifar(source, split)
    if source.suffix == ".npz":
        raise DataError(f"{source}: is not imported; copy it to <root>/<name>/<split>.npz, with `images` and `labels`")
    raise DataError(
        f"{source}: format not recognised; expected CIFAR (.tar.gz, .bin, batches), MNIST idx, SVHN .mat, "
        "class folders or an image list (.txt)"
    )


def note_ignored(source: AnyPath, found: SplitFolders) -> None:
    """Log a warning if there are other folders with images beside the splits."""
    if found.ignored:
        names = f"{', '.join(found.splits)}; ignored: {', '.join(found.ignored)}"
        _log.warning("%s: contains the splits %s", source, names)
