"""Read image files: single images, class folders and image lists."""

from __future__ import annotations

import logging
import os
from collections import Counter
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from moon.data.benchmarks import Size, sides
from moon.data.class_names import check_distinct
from moon.data.dataset import AnyPath, DataSet, Track, as_dataset
from moon.data.decoding import decode_rgb
from moon.data.folders import check_link, files_in, find_splits, is_image, subfolders
from moon.data.image_lists import check_inside, read_entries
from moon.data.limits import allowed_bytes, check_bytes, max_bytes
from moon.errors import DataError

_log = logging.getLogger(__name__)
_NAMED = 3  # images that a message names if more cannot be read


def read_folders(
    source: AnyPath,
    size: Size = 32,
    track: Track = iter,
    *,
    root: AnyPath | None = None,
    to_8_bit: int = 0,
    skipped: dict[Path, DataError] | None = None,
) -> DataSet:
    """Read class folders of images, `<source>/<class>/<image>`.

    Args:
        source: The folder of class folders. Classes are numbered in alphabetical order of their names.
        size: Height and width of the result, one number if it is square: images are resized to cover it, then the
            centre is cropped.
        track: Wraps the list of images while they are decoded, for example in a progress bar.
        root: The folder that links must not lead out of; default: the source.
        to_8_bit: The value that becomes 255 in images with more than 8 bits per channel; 0: they are an error.
        skipped: Gets the images that cannot be read, which are then left out; None: they are an error.

    Returns:
        The data set, RGB, with the names of its classes.

    Raises:
        DataError: There are no class folders, one has no images, an image cannot be decoded, the folder contains
            splits (train, test) in place of classes, or a link leads out of the root.

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
        >>> dataset.images.shape, dataset.labels.tolist(), dataset.classes
        ((2, 16, 16, 3), [0, 1], ('cat', 'dog'))
    """
    source, root = Path(source), Path(root or source)
    found, names = class_images(source, root)
    entries: list[tuple[Path, int, object]] = [(path, label, path) for path, label in found]
    return _decode_all(entries, size, track, source, names, True, root, to_8_bit, skipped)


def class_images(source: Path, root: Path) -> tuple[list[tuple[Path, int]], tuple[str, ...]]:
    """Return path and label of each image of class folders, and the names of the classes; nothing is decoded."""
    if not source.is_dir():
        raise DataError(f"{source}: no such folder")
    if splits := find_splits(source, root=root).splits:
        one = next(iter(splits.values()))
        raise DataError(f"{source}: contains the splits {', '.join(splits)}, not classes; read one of them ({one})")
    folders = subfolders(source, root)
    if not folders:
        raise DataError(
            f"{source}: contains no class folders; expected {source.name}/<class>/<image> (images of no known "
            "class: in one folder of any name)"
        )
    names = tuple(_as_text(folder.name) for folder in folders)
    check_distinct(names, source)
    images: list[tuple[Path, int]] = []
    others: Counter[str] = Counter()
    links: list[Path] = []
    for label, folder in enumerate(folders):
        files = sorted(path for path in files_in(folder, root, links) if not path.name.startswith("."))
        found = [path for path in files if is_image(path)]
        for path in found:
            check_link(path, root)
        if not found:
            raise DataError(f"{folder}: no images in this class folder; add some, or remove the folder")
        images += [(path, label) for path in found]
        others.update(path.suffix or path.name for path in files if not is_image(path))
    if stray := sum(map(is_image, source.iterdir())):
        _log.warning("%s: %d image(s) in no class folder are ignored", source, stray)
    if others:
        kinds = ", ".join(f"{count} {suffix}" for suffix, count in others.most_common(5))
        _log.warning("%s: files that are not images of a supported format are ignored (%s)", source, kinds)
    if links:
        _log.warning("%s: %d link(s) to folders are not followed, the first one: %s", source, len(links), links[0])
    return images, names


def _as_text(name: str) -> str:
    """The name of a file without bytes that are not UTF-8."""
    return os.fsencode(name).decode("utf-8", "replace")


def read_list(
    source: AnyPath,
    root: AnyPath | None = None,
    size: Size = 32,
    track: Track = iter,
    *,
    to_8_bit: int = 0,
    skipped: dict[Path, DataError] | None = None,
) -> DataSet:
    """Read an image list: one `<path> <label>` per line, label -1 for an image of no known class.

    Args:
        source: The list, a text file.
        root: The folder that paths are relative to; default: the folder of the list. Paths outside it are
            rejected.
        size: Height and width of the result, one number if it is square: images are resized to cover it, then the
            centre is cropped.
        track: Wraps the list of images while they are decoded, for example in a progress bar.
        to_8_bit: As for `read_folders`.
        skipped: As for `read_folders`.

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
        ...     _ = Path(folder, "list.txt").write_text("a.png 7", encoding="utf-8")
        ...     read_list(f"{folder}/list.txt", size=16).labels.tolist()
        [7]
    """
    source = Path(source)
    root = Path(root or source.parent)
    entries = read_entries(source)
    check_inside(entries, root)
    images: list[tuple[Path, int, object]] = [(root / relative, label, where) for relative, label, where in entries]
    return _decode_all(images, size, track, source, root=root, to_8_bit=to_8_bit, skipped=skipped)


def read_images(images: list[tuple[Path, int]], size: Size, track: Track, where: object) -> DataSet:
    """Read images given as (path, label); a `DataError` if there are none, or one cannot be decoded."""
    if not images:
        raise DataError(f"{where}: no images")
    return _decode_all([(path, label, path) for path, label in images], size, track, where)


def _decode_all(
    entries: list[tuple[Path, int, object]],
    size: Size,
    track: Track,
    where: object,
    classes: tuple[str, ...] = (),
    upright: bool = False,
    root: Path | None = None,
    to_8_bit: int = 0,
    skipped: dict[Path, DataError] | None = None,
) -> DataSet:
    """Decode images given as (path, label, source for messages), with their paths below the root; log changes."""
    shape = sides(size)
    statuses = (_status_of(path, source) for path, _, source in entries if skipped is None or path.exists())
    check_bytes(len(entries) * shape[0] * shape[1] * 3, allowed_bytes(statuses), where)
    images = np.empty((len(entries), *shape, 3), np.uint8)
    decoded: list[Prepared] = []
    kept: list[tuple[Path, int]] = []
    unreadable: dict[Path, DataError] = {}
    for path, label, source in track(entries):
        try:
            prepared = decode_image(path, size, source, upright, to_8_bit=to_8_bit)
        except DataError as error:
            unreadable[path] = error
            continue
        images[len(kept)] = prepared.pixels
        decoded.append(prepared._replace(pixels=images[len(kept)]))
        kept.append((path, label))
    if skipped is None or not kept:
        _check_readable(unreadable, len(entries))
    else:
        skipped.update(unreadable)
    _log_changes(decoded, shape, to_8_bit, where)
    files = None if root is None else np.array([_as_text(os.path.relpath(path, root)) for path, _ in kept])
    return as_dataset(images[: len(kept)], np.array([label for _, label in kept]), where, classes, files)


def _log_changes(images: list[Prepared], shape: tuple[int, int], to_8_bit: int, where: object) -> None:
    """Log how many images were resized, put on white or reduced to 8 bits."""
    if resized := [image.original for image in images if image.original != shape]:
        first, last = ("x".join(map(str, f(resized, key=prod))) for f in (min, max))
        _log.info(
            "%s: %d of %d images resized from %s to %dx%d (height x width): scaled to cover it, centre cropped",
            where, len(resized), len(images), first if first == last else f"{first}..{last}", *shape,
        )  # fmt: skip
    if transparent := sum(image.is_transparent for image in images):
        _log.warning("%s: %d of %d images are partly transparent; shown on white", where, transparent, len(images))
    if deep := [image.largest for image in images if image.largest]:
        fits = to_8_bit // 4 <= max(deep) <= to_8_bit
        _log.log(
            logging.INFO if fits else logging.WARNING,
            "%s: %d of %d images have more than 8 bits per channel: %s becomes 255; their largest value is %s%s",
            where, len(deep), len(images), f"{to_8_bit:,}", f"{max(deep):,}",
            "" if fits else f", so that images are too {'dark' if max(deep) < to_8_bit else 'bright'} (--to-8-bit)",
        )  # fmt: skip


def _check_readable(errors: dict[Path, DataError], count: int) -> None:
    """Raise the first of the errors, which also names the other images that have one."""
    for path, error in errors.items():
        if not (others := [str(other) for other in errors if other != path]):
            raise error
        rest = f" and {len(others) - _NAMED:,} more" if len(others) > _NAMED else ""
        raise DataError(f"{error}; {len(others):,} more of {count:,} images: {', '.join(others[:_NAMED])}{rest}")


def _status_of(path: Path, where: object) -> os.stat_result:
    try:
        return path.stat()
    except (OSError, ValueError):
        raise DataError(f"{where}: no such file: {path}") from None


class Prepared(NamedTuple):
    """An image in its final size, and what was done to it.

    Args:
        pixels: Array (height, width, 3), RGB.
        original: Its height and width in the file.
        is_transparent: Whether parts of it were transparent, which are now on white.
        largest: The largest value, if the image had more than 8 bits per channel; else 0.
    """

    pixels: NDArray[np.uint8]
    original: tuple[int, int]
    is_transparent: bool
    largest: int


def decode_image(
    path: Path, size: Size, where: object, upright: bool = False, *, shorter_side: int = 0, to_8_bit: int = 0
) -> Prepared:
    """Decode an image as OpenOOD prepares its test images: resize it to cover `size` (bilinear), crop the centre.

    The shorter side becomes `shorter_side` or more. What is transparent becomes white. If `upright`, the orientation
    that the file declares (EXIF) is applied. `to_8_bit` is that of `decode_rgb`.
    """
    from PIL import Image

    image, is_transparent, largest = decode_rgb(path, where, upright=upright, to_8_bit=to_8_bit)
    width, height = image.size
    rows, columns = sides(size)
    scale = max(rows / height, columns / width, shorter_side / min(width, height))
    target = max(columns, round(width * scale)), max(rows, round(height * scale))
    if 4 * target[0] * (height + target[1]) > max_bytes():  # it is resized to its width, then to its height
        raise DataError(f"{where}: {path.name} is {width}x{height}, too elongated to be resized to {rows}x{columns}")
    image = image.resize(target, Image.Resampling.BILINEAR)
    left, top = (target[0] - columns) // 2, (target[1] - rows) // 2
    pixels = np.asarray(image.crop((left, top, left + columns, top + rows)))
    return Prepared(pixels, (height, width), is_transparent, largest)
